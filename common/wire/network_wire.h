// Which network of which model version <-> proto. The router's and the coordinator's structs have the same fields.
#pragma once

#include "atoll/expert/v1/expert_service.pb.h"

namespace atl::wire {

template <typename Network>
Network NetworkFromProto(const atlpb::expert::v1::Network& proto) {
  return {.model = proto.model(), .version = proto.version(), .digest = proto.digest(), .expert = proto.expert()};
}

template <typename Network>
atlpb::expert::v1::Network NetworkToProto(const Network& network) {
  atlpb::expert::v1::Network proto;
  proto.set_model(network.model);
  proto.set_version(network.version);
  proto.set_digest(network.digest);
  proto.set_expert(network.expert);
  return proto;
}

}  // namespace atl::wire
