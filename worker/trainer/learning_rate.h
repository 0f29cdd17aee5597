// The learning rate as a function of the step. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/spec/spec.h"

namespace atl::trainer {

// Returns the rate of step `step` (0 for the first). A linear warm-up reaches the full rate at its last step. After it
// the rate is constant, or falls by a half cosine or a line, and is zero from step `training.steps` on.
double LearningRate(const spec::TrainingSpec& training, int64_t step);

// Returns the weight of the old average at step `step` (0 for the first): min(ema_decay, (1 + n) / (10 + n)) with
// n = step + 1. So the average of a short run forgets its initial weights.
double EmaDecay(const spec::TrainingSpec& training, int64_t step);

// Checks the numbers and the learning-rate schedule, not the precision. INVALID_ARGUMENT names the field, with
// VALUE_OUT_OF_RANGE (such as a negative rate, or a beta outside [0, 1)) or VALUE_UNKNOWN (the schedule).
absl::Status ValidateTraining(const spec::TrainingSpec& training);

}  // namespace atl::trainer
