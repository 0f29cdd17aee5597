// Reports to the coordinator which versions this router uses and how often it calls their experts
// (ServingService.ReportRouting), so that replicas follow the load.
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

// Owns one thread, joined by the destructor. The counts of a failed report are lost.
class RoutingReports {
 public:
  // Returns all versions of the router.
  using Versions = std::function<std::vector<FollowedVersion>()>;

  // `needs_router_networks`: servers must evaluate router networks, because this router evaluates none. `interval`
  // between two reports holds until the coordinator sets another. `engine` and `clock` must outlive this object.
  RoutingReports(bool needs_router_networks, std::shared_ptr<grpc::Channel> channel, Versions versions, Engine* engine,
                 Clock* clock, absl::Duration interval = absl::Seconds(2));
  ~RoutingReports();
  RoutingReports(const RoutingReports&) = delete;
  RoutingReports& operator=(const RoutingReports&) = delete;

 private:
  void Run();
  // Reports once, and returns the delay until the next report.
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
