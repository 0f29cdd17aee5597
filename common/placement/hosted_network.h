// The state that a server reports of one network that it is to host.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/network_id.h"

namespace atl::placement {

// Numbered as on the wire.
enum class NetworkState { kLoading = 1, kReady = 2, kFailed = 3 };

struct HostedNetwork {
  NetworkId network;
  NetworkState state = NetworkState::kLoading;
  int64_t bytes = 0;   // memory of its weights, once they are known
  absl::Status error;  // set for kFailed
  bool operator==(const HostedNetwork&) const = default;
};

}  // namespace atl::placement
