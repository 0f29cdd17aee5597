// Over which network the ranks of an island send tensors to each other. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace atl::worker {

struct DataNetworkFlags {
  std::string interface;  // --interface; empty: not given
  bool trusted = false;   // --trusted-data-network
};

// The network interface for `ranks` ranks, of which all are on this machine when `local`: "lo" where they are and
// nothing else is asked for. Transports send in the clear, and only the host transport makes its peers prove that they
// belong to the attempt: beyond this machine somebody has to name the interface and vouch for its network.
// FAILED_PRECONDITION, reasons DATA_INTERFACE_REQUIRED and DATA_NETWORK_NOT_TRUSTED.
absl::StatusOr<std::string> ChooseDataInterface(const DataNetworkFlags& flags, bool local, int ranks);

}  // namespace atl::worker
