// ExpertService (proto/atoll/expert/v1): evaluates routers' batches on lanes of this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "atoll/expert/v1/expert_service.grpc.pb.h"
#include "common/base/clock.h"
#include "expert_server/denoise_stream.h"
#include "expert_server/hosting_keeper.h"
#include "expert_server/lane_queue.h"
#include "inference/lane.h"

namespace atl::worker {

// The contents of a ListNetworks response.
struct Hosting {
  std::vector<placement::HostedNetwork> networks;
  std::string fingerprint;   // of the lanes
  int64_t memory_bytes = 0;  // for weights; 0: no limit
};

struct ExpertServiceOptions {
  // Batches that a stream reads before the oldest is answered, in addition to two per slot.
  int32_t spare_frames = 8;
  // Concurrent streams; more are rejected with RESOURCE_EXHAUSTED, reason TOO_MANY_STREAMS.
  int32_t max_streams = 256;
  // Called for each batch on the threads that answer; may be empty.
  std::function<void(const BatchEnd&)> batch_ended = nullptr;
};

atlpb::expert::v1::ListNetworksResponse ToProto(const Hosting& hosting, int32_t slots);

// Thread-safe; never blocks. Destroy it after the server that it is registered with has shut down.
class ExpertService final : public atlpb::expert::v1::ExpertService::WithRawCallbackMethod_Denoise<
                                atlpb::expert::v1::ExpertService::WithCallbackMethod_ListNetworks<
                                    atlpb::expert::v1::ExpertService::Service>> {
 public:
  // `hosting` is called on gRPC's threads. `clock` must outlive the service.
  ExpertService(ExpertServiceOptions options, std::vector<std::shared_ptr<router::ExpertLane>> lanes,
                std::function<Hosting()> hosting, Clock* clock);

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Denoise(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* ListNetworks(grpc::CallbackServerContext* context,
                                         const atlpb::expert::v1::ListNetworksRequest* request,
                                         atlpb::expert::v1::ListNetworksResponse* response) override;

  // Returns how many batches are evaluated side by side, and how many wait.
  int32_t slots() const { return queue_.slots(); }
  size_t waiting() const { return queue_.waiting(); }
  // Returns how many streams of routers are open.
  int32_t streams() const { return streams_.load(); }
  // Waits until no batch waits or runs, at most until `deadline` of the monotonic clock.
  bool AwaitIdle(absl::Duration deadline) { return queue_.AwaitIdle(deadline); }

 private:
  const ExpertServiceOptions options_;
  const std::function<Hosting()> hosting_;
  Clock* const clock_;
  std::atomic<int64_t> last_evaluation_ = 0;
  std::atomic<int32_t> streams_ = 0;
  LaneQueue queue_;
};

}  // namespace atl::worker
