// Passes the coordinator's list of expert servers (ServingService.WatchServers) to RemoteExperts, with backoff while
// the coordinator is unreachable; the last list then stays.
#pragma once

#include <memory>

#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "common/base/clock.h"
#include "common/rpc/watch_loop.h"
#include "router/remote/remote_experts.h"

namespace atl::router {

// Owns a WatchLoop, which ends with it.
class ExpertDirectory {
 public:
  // `experts` and `clock` must outlive the directory.
  ExpertDirectory(std::shared_ptr<grpc::Channel> channel, RemoteExperts* experts, Clock* clock,
                  const BackoffLimits& backoff = rpc::WatchLoop::Options().backoff);

 private:
  const std::unique_ptr<atlpb::serving::v1::ServingService::Stub> stub_;
  RemoteExperts* const experts_;
  rpc::WatchLoop watch_;
};

}  // namespace atl::router
