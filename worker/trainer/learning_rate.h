// The learning rate as a function of the step. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/spec/spec.h"

namespace atl::trainer {

// Returns the rate of step `step` (0 for the first). A linear warm-up reaches the full rate at its last step. After it
// the rate is constant, or falls to zero by a half cosine or a line over the remaining steps. Past the last step it
// keeps its final value.
double LearningRate(const spec::TrainingSpec& training, int64_t step);

// Returns the share of the old average in step `step` (0 for the first): min(ema_decay, (1 + n) / (10 + n)) after n =
// step + 1 steps, so that the average of a short run forgets its initial weights.
double EmaDecay(const spec::TrainingSpec& training, int64_t step);

// Returns OK, or INVALID_ARGUMENT with the field that no training can use: an unknown schedule or precision, negative
// rates, betas outside [0, 1).
absl::Status ValidateTraining(const spec::TrainingSpec& training);

}  // namespace atl::trainer
