// Tells the coordinator which versions this router uses and which experts they ask (ServingService.ReportRouting):
// replicas follow it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/base/clock.h"
#include "router/engine/engine.h"
#include "router/service/model_follower.h"

namespace atl::router {

struct ReportOptions {
  // Between two reports, until the coordinator says otherwise.
  absl::Duration interval = absl::Seconds(2);
  absl::Duration timeout = absl::Seconds(3);
  bool needs_router_networks = false;  // of servers: this router evaluates none
};

// Owns one thread, joined by the destructor. What could not be told is told with the next report.
class RoutingReports {
 public:
  // All versions that the router has.
  using Versions = std::function<std::vector<FollowedVersion>()>;

  // `engine` and `clock` must outlive it.
  RoutingReports(ReportOptions options, std::shared_ptr<grpc::Channel> channel, Versions versions, Engine* engine,
                 Clock* clock);
  ~RoutingReports();
  RoutingReports(const RoutingReports&) = delete;
  RoutingReports& operator=(const RoutingReports&) = delete;

 private:
  void Run();
  // Returns when the next report is due, from now.
  absl::Duration Report();

  const ReportOptions options_;
  const std::string router_id_;  // of this process
  const std::unique_ptr<atlpb::serving::v1::ServingService::Stub> stub_;
  const Versions versions_;
  Engine* const engine_;
  Clock* const clock_;
  // Image-steps per expert that no report has told yet, by model and version. Of the thread.
  std::map<std::pair<std::string, std::string>, std::vector<int64_t>> untold_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // under way, to cancel
  std::thread thread_;
};

}  // namespace atl::router
