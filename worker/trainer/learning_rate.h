// The learning rate as a function of the step. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/spec/spec.h"

namespace atl::trainer {

// The rate of step `step` (0 for the first): a linear warm-up that reaches the full rate at its last step, then
// constant, a half cosine to zero or a line to zero over the steps that remain. Past the last step it stays at the end.
double LearningRate(const spec::TrainingSpec& training, int64_t step);

// The share of the old average in step `step` (0 for the first): min(ema_decay, (1 + n) / (10 + n)) after n = step + 1
// steps, so that the average of a short run forgets its initial weights.
double EmaDecay(const spec::TrainingSpec& training, int64_t step);

// OK, or INVALID_ARGUMENT with the field for what no training can use: a schedule or precision that is not known,
// negative rates, betas outside [0, 1).
absl::Status ValidateTraining(const spec::TrainingSpec& training);

}  // namespace atl::trainer
