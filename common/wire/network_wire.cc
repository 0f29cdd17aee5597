#include "common/wire/network_wire.h"

#include "common/base/errors.h"
#include "common/wire/status_proto.h"
#include "fmt/format.h"

namespace atl::wire {

namespace pb = atlpb::expert::v1;

NetworkId FromProto(const pb::Network& proto) {
  return {.model = proto.model(), .version = proto.version(), .digest = proto.digest(), .expert = proto.expert()};
}

pb::Network ToProto(const NetworkId& network) {
  pb::Network proto;
  proto.set_model(network.model);
  proto.set_version(network.version);
  proto.set_digest(network.digest);
  proto.set_expert(network.expert);
  return proto;
}

absl::StatusOr<placement::HostedNetwork> FromProto(const std::string& field, const pb::HostedNetwork& proto) {
  if (proto.state() < pb::HostedNetwork::STATE_LOADING || proto.state() > pb::HostedNetwork::STATE_FAILED) {
    return FieldError(field + ".state", "INVALID_EXPERT_SERVER",
                      fmt::format("expected loading, ready or failed, found {}", static_cast<int>(proto.state())));
  }
  return placement::HostedNetwork{.network = FromProto(proto.network()),
                                  .state = static_cast<placement::NetworkState>(proto.state()),
                                  .bytes = proto.bytes(),
                                  .error = rpc::FromProto(proto.error())};
}

pb::HostedNetwork ToProto(const placement::HostedNetwork& hosted) {
  pb::HostedNetwork proto;
  *proto.mutable_network() = ToProto(hosted.network);
  proto.set_state(static_cast<pb::HostedNetwork::State>(hosted.state));
  proto.set_bytes(hosted.bytes);
  if (!hosted.error.ok()) *proto.mutable_error() = rpc::ToProto(hosted.error);
  return proto;
}

}  // namespace atl::wire
