// Which networks stay in a device's memory when another one is wanted there. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/policy/network_id.h"

namespace atl::router {

// In memory, or being loaded: then its bytes count and it is pinned.
struct ResidentNetwork {
  NetworkId id;
  int64_t bytes = 0;
  int32_t pins = 0;          // batches that use it, dispatched and not yet done
  absl::Duration last_used;  // of the monotonic clock
  bool elsewhere = false;    // lies on another device of this process too
  bool unasked = false;      // no batch has asked for it since it was loaded: it was only checked
};

enum class ResidencyAction {
  kLoad,    // once `evict` is gone
  kWait,    // until something that is in use is not: then look again
  kRefuse,  // it does not fit even alone
};

struct ResidencyDecision {
  ResidencyAction action = ResidencyAction::kLoad;
  std::vector<NetworkId> evict;  // in the order in which they go
  int64_t bytes_missing = 0;     // what keeps it out now; of kRefuse: by how much the budget is too small
  std::string reason;
};

// May a network of `bytes` that is not in memory be loaded? `budget` in bytes; 0: no limit. No more goes than has to,
// and never a pinned network: first what lies elsewhere too, which nobody has to wait for, then what no batch has asked
// for, so that a version that is loaded beside a busy one costs that one a single network at a time, then what was not
// used for longest. Ties go by id.
ResidencyDecision DecideResidency(int64_t bytes, std::span<const ResidentNetwork> resident, int64_t budget);

// RESOURCE_EXHAUSTED with reason EXPERT_DOES_NOT_FIT, naming the network, its bytes and the budget.
absl::Status DoesNotFitStatus(const NetworkId& id, int64_t bytes, int64_t budget);

}  // namespace atl::router
