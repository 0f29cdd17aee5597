// Measures what the layers of frozen components cost on this device, each run as a piece of its own by the code that
// trains (RankFrozen); all ranks at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/planner/profile.h"
#include "worker/trainer/rank_measuring.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

struct FrozenProfilerOptions {
  int32_t rounds = 5;                         // that count, after one that does not, at every size
  absl::Duration longest;                     // per size; one round is measured in any case
  std::function<absl::Status()> interrupted;  // asked between two rounds
};

// Every layer of options.frozen over planner::FrozenSizes of the batch, smallest first: a component's first layer with
// the reading of its samples. A size whose round would take longer than `longest`, as the one before it foretells, is
// left out with those above it: their seconds lie on the line through the last two. Every rank calls it alike; blocks.
// Errors are those of RankFrozen.
absl::StatusOr<std::vector<planner::FrozenComponentProfile>> MeasureFrozen(const TrainerOptions& options,
                                                                           const FrozenProfilerOptions& how,
                                                                           const MeasuringRanks& ranks, Clock* clock);

}  // namespace atl::trainer
