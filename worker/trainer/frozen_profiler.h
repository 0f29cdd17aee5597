// Measures the costs of the layers of frozen components on this device. The code that trains (RankFrozen) runs each as
// its own piece, on all ranks at the same time.
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
  int32_t rounds = 5;                         // rounds that count, after a first one that does not, at every size
  absl::Duration longest;                     // per size; at least one round is measured
  std::function<absl::Status()> interrupted;  // called between two rounds
};

// Measures every layer of options.frozen over planner::FrozenSizes of the batch, smallest first; the first layer of a
// component includes reading its samples. If the previous size predicts a round longer than `longest`, this size and
// all above are left out: their seconds lie on the line through the last two. Every rank makes the same call; blocks.
// Returns the errors of RankFrozen.
absl::StatusOr<std::vector<planner::FrozenComponentProfile>> MeasureFrozen(const TrainerOptions& options,
                                                                           const FrozenProfilerOptions& how,
                                                                           const MeasuringRanks& ranks, Clock* clock);

}  // namespace atl::trainer
