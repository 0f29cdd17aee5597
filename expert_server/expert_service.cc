#include "expert_server/expert_service.h"

#include <utility>

#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/wire/network_wire.h"
#include "common/wire/status.h"
#include "fmt/format.h"

namespace atl::worker {
namespace {

namespace expert_pb = atlpb::expert::v1;

using Frame = grpc::ByteBuffer;

// A stream that is over before it began.
class RefusedStream final : public grpc::ServerBidiReactor<Frame, Frame> {
 public:
  explicit RefusedStream(const absl::Status& status) { Finish(rpc::ToGrpc(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

expert_pb::ListNetworksResponse ToProto(const Hosting& hosting, int32_t slots) {
  expert_pb::ListNetworksResponse proto;
  for (const placement::HostedNetwork& network : hosting.networks) *proto.add_networks() = wire::ToProto(network);
  proto.set_fingerprint(hosting.fingerprint);
  proto.set_slots(slots);
  proto.set_memory_bytes(hosting.memory_bytes);
  return proto;
}

ExpertService::ExpertService(ExpertServiceOptions options, std::vector<std::shared_ptr<router::ExpertLane>> lanes,
                             std::function<Hosting()> hosting, Clock* clock)
    : options_(std::move(options)),
      hosting_(std::move(hosting)),
      clock_(clock),
      queue_(std::move(lanes), clock, options_.batch_ended) {}

grpc::ServerBidiReactor<Frame, Frame>* ExpertService::Denoise(grpc::CallbackServerContext* /*context*/) {
  // A stream of a router lives as long as the router: its connection's pings end it, not a deadline.
  if (streams_.fetch_add(1) >= options_.max_streams) {
    streams_.fetch_sub(1);
    return new RefusedStream(
        MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_STREAMS",
                  fmt::format("expected at most {} streams at once, found one more", options_.max_streams)));
  }
  return DenoiseStream::Open({.max_frames = static_cast<size_t>(2 * queue_.slots() + options_.spare_frames),
                              .next_evaluation = [this] { return last_evaluation_.fetch_add(1) + 1; },
                              .closed = [this] { streams_.fetch_sub(1); }},
                             &queue_, clock_)
      .get();
}

grpc::ServerUnaryReactor* ExpertService::ListNetworks(grpc::CallbackServerContext* context,
                                                      const expert_pb::ListNetworksRequest* /*request*/,
                                                      expert_pb::ListNetworksResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status deadline = rpc::RequireDeadline(*context);
  if (deadline.ok()) *response = ToProto(hosting_(), queue_.slots());
  reactor->Finish(rpc::ToGrpc(deadline));
  return reactor;
}

}  // namespace atl::worker
