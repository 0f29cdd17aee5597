#include "worker/trainer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::trainer {

double LearningRate(const spec::TrainingSpec& training, int64_t step) {
  if (step < training.warmup_steps) {
    return training.learning_rate * static_cast<double>(step + 1) / training.warmup_steps;
  }
  if (training.learning_rate_schedule == "constant") return training.learning_rate;
  const int64_t length = std::max<int64_t>(1, training.steps - training.warmup_steps);
  const double progress =
      std::min(1.0, static_cast<double>(step - training.warmup_steps) / static_cast<double>(length));
  if (training.learning_rate_schedule == "linear") return training.learning_rate * (1 - progress);
  return training.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

double EmaDecay(const spec::TrainingSpec& training, int64_t step) {
  const auto n = static_cast<double>(step + 1);
  return std::min(training.ema_decay, (1 + n) / (10 + n));
}

absl::Status ValidateTraining(const spec::TrainingSpec& training) {
  struct Range {
    const char* field;
    double value;
    double least;
    double below;
  };
  constexpr double kNoLimit = 1e300;
  const Range ranges[] = {{"training.learning_rate", training.learning_rate, 0, kNoLimit},
                          {"training.warmup_steps", static_cast<double>(training.warmup_steps), 0, kNoLimit},
                          {"training.weight_decay", training.weight_decay, 0, kNoLimit},
                          {"training.beta1", training.beta1, 0, 1},
                          {"training.beta2", training.beta2, 0, 1},
                          {"training.epsilon", training.epsilon, 1e-300, kNoLimit},
                          {"training.clip_norm", training.clip_norm, 0, kNoLimit},
                          {"training.ema_decay", training.ema_decay, 0, 1},
                          {"training.class_dropout", training.class_dropout, 0, 1.0000001}};
  for (const Range& range : ranges) {
    if (!(range.value >= range.least && range.value < range.below)) {
      return FieldError(
          range.field, "VALUE_OUT_OF_RANGE",
          fmt::format("expected at least {} and below {}; found {}", range.least, range.below, range.value));
    }
  }
  const std::string& schedule = training.learning_rate_schedule;
  if (schedule != "constant" && schedule != "cosine" && schedule != "linear") {
    return FieldError("training.learning_rate_schedule", "VALUE_UNKNOWN",
                      fmt::format("expected constant, cosine or linear; found '{}'", schedule));
  }
  return absl::OkStatus();
}

}  // namespace atl::trainer
