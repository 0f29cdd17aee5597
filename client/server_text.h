// Expert servers as text for people. Pure.
#pragma once

#include <string>

#include "atoll/serving/v1/serving_service.pb.h"

namespace atl::client {

// Lists one line per server: its networks by state, their weights, the first error. Then lists versions with networks
// that fit on no server.
std::string DescribeServers(const atlpb::serving::v1::WatchServersResponse& response, int width);

// Describes one server with every network that it hosts or is assigned.
std::string DescribeServer(const atlpb::serving::v1::ExpertServer& server, int width);

}  // namespace atl::client
