#include "worker/attempt/stop_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace atl::worker {
namespace {

// Within this a message has reached every rank, nearly always; a rank that it reaches too late ends without the
// checkpoint.
constexpr absl::Duration kMessageTime = absl::Milliseconds(500);

// Time for the ranks to end the attempt and for the coordinator to accept the released task.
constexpr absl::Duration kSettleTime = absl::Milliseconds(500);

// Assumed time of a step, and of a checkpoint, before the first measurement.
constexpr absl::Duration kUnmeasured = absl::Seconds(2);

constexpr int64_t kMostStepsOnTheWay = 500;

// Steps end together, so no rank is more than one ahead of the leader's; the message needs a moment on top.
int64_t StepsToStop(absl::Duration step_time) {
  if (step_time <= absl::ZeroDuration()) return 2;
  const double on_the_way = std::ceil(absl::FDivDuration(kMessageTime, step_time));
  return 2 + static_cast<int64_t>(std::min(on_the_way, static_cast<double>(kMostStepsOnTheWay)));
}

absl::Duration Measured(absl::Duration time) {
  return time > absl::ZeroDuration() ? time : kUnmeasured;
}

}  // namespace

StopPlan DecideStop(const StopFacts& facts) {
  StopPlan plan;
  plan.steps = facts.steps_left.value_or(StepsToStop(facts.step_time));
  const absl::Duration steps_take = Measured(facts.step_time) * plan.steps;
  const absl::Duration checkpoint_takes = Measured(facts.checkpoint_time);
  const absl::Duration needed = steps_take + checkpoint_takes + kSettleTime;
  plan.checkpoint = needed <= facts.left;
  if (facts.left == absl::InfiniteDuration()) {
    plan.reason = fmt::format("{} more steps and a checkpoint", plan.steps);
    return plan;
  }
  plan.reason =
      fmt::format("{}: {} more steps and a checkpoint need {:.1f} s, {:.1f} s are left",
                  plan.checkpoint ? "a checkpoint fits" : "released at once, without a checkpoint", plan.steps,
                  absl::ToDoubleSeconds(needed), std::max(0.0, absl::ToDoubleSeconds(facts.left)));
  if (!plan.checkpoint) plan.steps = 0;
  return plan;
}

}  // namespace atl::worker
