// Expert servers as text for people. Pure.
#pragma once

#include <string>

#include "atoll/serving/v1/serving_service.pb.h"

namespace atl::client {

// One line per server: its networks by state, their weights, the first error. Then versions with networks that have
// room nowhere.
std::string DescribeServers(const atlpb::serving::v1::WatchServersResponse& response, int width);

// One server with every network that it hosts or is to host.
std::string DescribeServer(const atlpb::serving::v1::ExpertServer& server, int width);

}  // namespace atl::client
