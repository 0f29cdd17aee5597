// The adaptive schedule: the shortest one found for measured costs and a memory limit. Pure.
//
// V placement: rank r of p holds the stages r and 2p - 1 - r. The search follows "Pipeline Parallelism with
// Controllable Memory" (Qi et al. 2024): building blocks repeated, warm-up and cool-down rewritten, squeezed,
// reordered. Unlike there, every candidate is compacted as a list schedule and timed under the real costs of each stage
// and hop, and the best ones go through a local search along their critical path; small problems are settled by branch
// and bound. ZBV, V-Half and V-Min are candidates, too. Deterministic: no clock, no seed that changes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {

enum class AdaptiveGoal : uint8_t {
  kMakespan,  // of the whole step: what counts where the step ends with a barrier
  kRankIdle,  // the idle time of the worst rank between its own first and last action, as published tables count
};

struct AdaptiveOptions {
  AdaptiveGoal goal = AdaptiveGoal::kMakespan;
  // Effort, in place of a time limit. The defaults take about 0.1 s for 8 ranks and 16 micro-batches.
  int32_t candidates = 1000;  // at most this many building blocks and their variants are compacted and timed
  int32_t moves = 12'000;     // at most this many moves are tried by the local search
  int64_t nodes = 400'000;    // of the branch and bound that settles small problems; 0: the heuristic alone
};

// Returns the schedule with a split backward; an I directly followed by its W is a B where that delays nothing. `costs`
// holds two stages per rank; frozen pieces and fixed bytes in it do not count. `limit_bytes` is what each rank may hold
// of activations and transients. INVALID_ARGUMENT when there are no ranks or micro-batches, or for costs that Simulate
// refuses. FAILED_PRECONDITION (SCHEDULE_MEMORY_LIMIT) when a limit is below the least that any schedule needs there:
// one micro-batch on both chunks; the message names it.
absl::StatusOr<Schedule> FindAdaptive(int32_t micro_batches, const SimulationCosts& costs,
                                      const std::vector<double>& limit_bytes, const AdaptiveOptions& options = {});

}  // namespace atl::schedule
