#include "worker/attempt/divergence.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

constexpr size_t kWindow = 50;    // losses whose median is what to expect, and steps that are reported
constexpr size_t kFewest = 10;    // losses before any is judged
constexpr int64_t kPatience = 3;  // steps in a row
// A model that knows nothing has about this loss: noise of variance 1 to predict, or clusters to tell apart. Below it a
// loss may jump when a model that is nearly perfect meets a hard batch.
constexpr double kLeast = 1.0;

}  // namespace

double DivergenceWatch::Median() const {
  std::vector<double> sorted(losses_.begin(), losses_.end());
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

void DivergenceWatch::Remember(const WatchedStep& step) {
  latest_.push_back(step);
  if (latest_.size() > kWindow) latest_.pop_front();
}

Divergence DivergenceWatch::MakeDivergence(int64_t step, std::string cause, std::string message) const {
  return {.step = step,
          // Losses that had begun to explode are a part of it.
          .first_bad_step = step - std::max<int64_t>(exploded_ - 1, 0),
          .cause = std::move(cause),
          .message = std::move(message),
          .steps = {latest_.begin(), latest_.end()}};
}

std::optional<Divergence> DivergenceWatch::OnStep(const WatchedStep& step) {
  Remember(step);
  const bool judged = explosion_factor_ > 0 && losses_.size() >= kFewest;
  const double median = judged ? Median() : 0;
  if (!judged || step.loss <= std::max(kLeast, explosion_factor_ * median)) {
    exploded_ = 0;
    losses_.push_back(step.loss);
    if (losses_.size() > kWindow) losses_.pop_front();
    return std::nullopt;
  }
  if (++exploded_ < kPatience) return std::nullopt;
  return MakeDivergence(step.step, "LOSS_EXPLODED",
                        fmt::format("training diverged: step {}: expected a loss of at most {} x {:.4g}, the median of "
                                    "the latest {}; found more for {} steps, at last {:.4g}",
                                    step.step, explosion_factor_, median, losses_.size(), exploded_, step.loss));
}

std::optional<Divergence> DivergenceWatch::OnFailedStep(int64_t step, int64_t first_sample, const absl::Status& error) {
  const std::string reason = ErrorReason(error);
  if (reason != "LOSS_NOT_FINITE" && reason != "GRADIENT_NOT_FINITE") return std::nullopt;
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Remember({.step = step, .loss = kNone, .gradient_norm = kNone, .first_sample = first_sample});
  ++exploded_;
  return MakeDivergence(step, reason, fmt::format("training diverged: {}", std::string(error.message())));
}

}  // namespace atl::worker
