// Chooses the network over which the ranks of an island send tensors to each other. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace atl::worker {

struct DataNetworkFlags {
  std::string interface;  // --interface; empty: not given
  bool trusted = false;   // --trusted-data-network
};

// Returns the network interface for `ranks` ranks; `local` says that all are on this machine. Returns "lo" if they are
// and no other interface is given. Transports send in the clear, and only the host transport makes its peers prove that
// they belong to the attempt. Beyond this machine, the operator must therefore name the interface and declare its
// network trusted. FAILED_PRECONDITION, reasons DATA_INTERFACE_REQUIRED and DATA_NETWORK_NOT_TRUSTED.
absl::StatusOr<std::string> ChooseDataInterface(const DataNetworkFlags& flags, bool local, int ranks);

}  // namespace atl::worker
