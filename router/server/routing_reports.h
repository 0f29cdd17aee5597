// Tells the coordinator which versions this router uses and which experts they ask (ServingService.ReportRouting):
// replicas follow it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/base/clock.h"
#include "router/engine/engine.h"
#include "router/service/model_follower.h"

namespace atl::router {

// Owns one thread, joined by the destructor. What a report that fails had counted is lost.
class RoutingReports {
 public:
  // All versions that the router has.
  using Versions = std::function<std::vector<FollowedVersion>()>;

  // `needs_router_networks`: of servers, for this router evaluates none. `interval`: between two reports, until the
  // coordinator says otherwise. `engine` and `clock` must outlive it.
  RoutingReports(bool needs_router_networks, std::shared_ptr<grpc::Channel> channel, Versions versions, Engine* engine,
                 Clock* clock, absl::Duration interval = absl::Seconds(2));
  ~RoutingReports();
  RoutingReports(const RoutingReports&) = delete;
  RoutingReports& operator=(const RoutingReports&) = delete;

 private:
  void Run();
  // Returns when the next report is due, from now.
  absl::Duration Report();

  const bool needs_router_networks_;
  const std::string router_id_;  // of this process
  const std::unique_ptr<atlpb::serving::v1::ServingService::Stub> stub_;
  const Versions versions_;
  Engine* const engine_;
  Clock* const clock_;
  const absl::Duration interval_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // under way, to cancel
  std::thread thread_;
};

}  // namespace atl::router
