// What is scheduled step by step, and on what: evaluations that may share a batch, and the lanes that run batches.
// Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "router/policy/network_id.h"

namespace atl::router {

// Evaluations of equal keys may share a batch.
struct GroupKey {
  int64_t model = 0;                 // a loaded model version
  int32_t network = kRouterNetwork;  // or an expert
  int32_t height = 0;
  int32_t width = 0;
  bool guided = false;        // evaluated with its class and with the null class, in the same batch
  bool reproducible = false;  // batches of a fixed shape
  auto operator<=>(const GroupKey&) const = default;
};

struct LaneNetwork {
  int64_t model = 0;
  int32_t network = kRouterNetwork;
  bool resident = true;  // else it is loaded first
  auto operator<=>(const LaneNetwork&) const = default;
};

// One executor of batches, as the scheduler sees it.
struct LaneState {
  int32_t lane = 0;
  int32_t free_slots = 0;             // batches that it can take now
  std::vector<LaneNetwork> networks;  // that it can run
};

}  // namespace atl::router
