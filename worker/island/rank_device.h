// Which CUDA device a rank computes on. Pure.
//
// The first of these that applies decides: --device cuda:N; the only device that the process sees, as where Slurm or
// Kubernetes has hidden the others; LOCAL_RANK; SLURM_LOCALID of a rank that takes its number from Slurm. Otherwise the
// leader gives each rank the first of its devices that no other rank of the island has, in rank order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/island/rank_discovery.h"

namespace atl::worker {

// A rank's number among the ranks of its host.
struct LocalRank {
  std::string variable;  // that says so
  int32_t number = 0;
};

// Unset where no launcher says. INVALID_ARGUMENT, reason RANK_UNCLEAR, for a variable that is no number.
absl::StatusOr<std::optional<LocalRank>> FindLocalRank(const RankIdentity& identity, const Environment& environment);

struct DeviceChoice {
  std::vector<int32_t> numbers;  // one: it is decided; several: the leader takes one of them; none: the processor
  std::string reason;
};

// `flag` is --device: cpu, cuda or cuda:N. `visible` is the number of CUDA devices that this process sees.
// INVALID_ARGUMENT, reason DEVICE_UNKNOWN, for another flag; FAILED_PRECONDITION, reason DEVICE_UNAVAILABLE, for a
// device that is not visible.
absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view flag, const std::optional<LocalRank>& local,
                                          int32_t visible);

// A device as one process sees it.
struct RankDevice {
  std::string label;  // "cuda:1"
  std::string id;     // the same in every process: the device's UUID, or host and label
  bool operator==(const RankDevice&) const = default;
};

// A rank, which needs a device of its own.
struct DeviceSeeker {
  int32_t rank = 0;
  std::string where;                // host and process
  std::vector<RankDevice> devices;  // that it may have, in order of preference
};

// The device of each seeker, in their order: those with one device have it, each other takes its first that is free.
// One that may have none, for it computes on the processor, gets an empty one. FAILED_PRECONDITION, reason
// DEVICE_TAKEN, names the ranks, their hosts and the device, and says how to mend it.
absl::StatusOr<std::vector<RankDevice>> AssignDevices(const std::vector<DeviceSeeker>& seekers);

}  // namespace atl::worker
