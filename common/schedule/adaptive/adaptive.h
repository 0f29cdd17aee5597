// The adaptive schedule: the shortest one found for measured costs and a memory limit. Pure.
//
// V placement: rank r of p holds the stages r and 2p - 1 - r. The search follows "Pipeline Parallelism with
// Controllable Memory" (Qi et al. 2024): building blocks repeated, warm-up and cool-down rewritten, squeezed,
// reordered. Unlike there, every candidate is compacted as a list schedule and timed under the real costs of each stage
// and hop. The best ones go through a local search along their critical path; branch and bound solves small problems.
// ZBV, V-Half and V-Min are candidates, too. Deterministic: no clock, no changing seed.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {

enum class AdaptiveGoal : uint8_t {
  kMakespan,  // of the whole step: for steps that end with a barrier
  kRankIdle,  // the idle time of the worst rank between its own first and last action, as in published tables
};

struct AdaptiveOptions {
  AdaptiveGoal goal = AdaptiveGoal::kMakespan;
  // Effort, in place of a time limit. The defaults take about 0.1 s for 8 ranks and 16 micro-batches.
  int32_t candidates = 1000;  // most building blocks and variants that are compacted and timed
  int32_t moves = 12'000;     // most moves that the local search tries
  int64_t nodes = 400'000;    // of the branch and bound that solves small problems; 0: the heuristic alone
};

// Returns the schedule with a split backward; an I directly followed by its W is a B where that delays no action.
// `costs` holds two stages per rank; its frozen pieces and fixed bytes do not count. `limit_bytes` limits each rank's
// activations and transients. INVALID_ARGUMENT without ranks or micro-batches, or for costs that Simulate refuses.
// FAILED_PRECONDITION (SCHEDULE_MEMORY_LIMIT) if a limit is below the least that any schedule needs there, one
// micro-batch on both chunks; the message names it.
absl::StatusOr<Schedule> FindAdaptive(int32_t micro_batches, const SimulationCosts& costs,
                                      const std::vector<double>& limit_bytes, const AdaptiveOptions& options = {});

}  // namespace atl::schedule
