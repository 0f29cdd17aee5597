#include "worker/island/data_network.h"

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::worker {
namespace {

constexpr char kLoopback[] = "lo";

}  // namespace

absl::StatusOr<std::string> ChooseDataInterface(const DataNetworkFlags& flags, bool local, int ranks) {
  const std::string& interface = flags.interface;
  // A single rank sends nothing.
  if (interface.empty() && (local || ranks == 1)) return kLoopback;
  if (interface == kLoopback) return interface;
  if (interface.empty() || interface == "all") {
    return MakeError(absl::StatusCode::kFailedPrecondition, "DATA_INTERFACE_REQUIRED",
                     fmt::format("--interface: expected the network interface between the island's machines, as eth1, "
                                 "found {}: tensors travel over it in the clear, so it is never chosen for you",
                                 interface.empty() ? "none" : "'all'"));
  }
  if (!flags.trusted) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "DATA_NETWORK_NOT_TRUSTED",
                     fmt::format("--interface {}: tensors travel between ranks in the clear. Give "
                                 "--trusted-data-network where nobody else can read or write on that network",
                                 interface));
  }
  return interface;
}

}  // namespace atl::worker
