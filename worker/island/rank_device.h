// Chooses the CUDA device that a rank computes on. Pure.
//
// The first of these that applies decides: --device cuda:N; the only device that the process sees, as when Slurm or
// Kubernetes hides the others; LOCAL_RANK; SLURM_LOCALID, if the rank's number comes from Slurm. Otherwise the leader
// assigns each rank, in rank order, the first of its devices that no other rank of the island has.
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
  std::string variable;  // the variable that sets it
  int32_t number = 0;
};

// Returns nullopt if no launcher sets it. INVALID_ARGUMENT, reason RANK_UNCLEAR, for a variable that is not a number.
absl::StatusOr<std::optional<LocalRank>> FindLocalRank(const RankIdentity& identity, const Environment& environment);

struct DeviceChoice {
  std::vector<int32_t> numbers;  // one: it is decided; several: the leader picks one of them; none: the processor
  std::string reason;
};

// `flag` is --device: cpu, cuda or cuda:N. `visible` is the number of CUDA devices that this process sees.
// INVALID_ARGUMENT, reason DEVICE_UNKNOWN, for another flag; FAILED_PRECONDITION, reason DEVICE_UNAVAILABLE, for a
// device that is not visible.
absl::StatusOr<DeviceChoice> ChooseDevice(std::string_view flag, const std::optional<LocalRank>& local,
                                          int32_t visible);

// A device as one process identifies it.
struct RankDevice {
  std::string label;  // "cuda:1"
  std::string id;     // the same in every process: the device's UUID, or host and label
  bool operator==(const RankDevice&) const = default;
};

// A rank that needs a device for itself alone.
struct DeviceSeeker {
  int32_t rank = 0;
  std::string where;                // host and process
  std::vector<RankDevice> devices;  // its candidates, in order of preference
};

// Returns the device of each seeker, in their order. A seeker with one candidate gets it; each other one gets its first
// free candidate. A seeker without candidates computes on the processor and gets an empty device. FAILED_PRECONDITION,
// reason DEVICE_TAKEN, names the ranks, their hosts, the device and a remedy.
absl::StatusOr<std::vector<RankDevice>> AssignDevices(const std::vector<DeviceSeeker>& seekers);

}  // namespace atl::worker
