// Networks of model versions and their hosting states, to and from proto.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "atoll/expert/v1/expert_service.pb.h"
#include "common/base/network_id.h"
#include "common/placement/hosted_network.h"

namespace atl::wire {

NetworkId FromProto(const atlpb::expert::v1::Network& proto);
atlpb::expert::v1::Network ToProto(const NetworkId& network);

// INVALID_ARGUMENT with reason INVALID_EXPERT_SERVER, naming `field`, if the state is unknown.
absl::StatusOr<placement::HostedNetwork> FromProto(const std::string& field,
                                                   const atlpb::expert::v1::HostedNetwork& proto);
atlpb::expert::v1::HostedNetwork ToProto(const placement::HostedNetwork& hosted);

}  // namespace atl::wire
