#include "worker/leader/progress_tracker.h"

#include <utility>

namespace atl::worker {

spec::Progress ProgressTracker::OnStep(int64_t step, double loss, std::map<std::string, double> metrics,
                                       absl::Duration now) {
  if (window_.empty() || step > window_.back().step) window_.push_back({step, now});
  if (window_.size() > kWindow) window_.pop_front();
  last_.step = window_.back().step;
  last_.total_steps = total_steps_;
  last_.loss = loss;
  last_.metrics = std::move(metrics);
  const int64_t steps = window_.back().step - window_.front().step;
  const absl::Duration took = window_.back().at - window_.front().at;
  if (steps > 0 && took > absl::ZeroDuration()) {
    step_time_ = took / steps;
    const double steps_per_second = static_cast<double>(steps) / absl::ToDoubleSeconds(took);
    last_.samples_per_second = steps_per_second * batch_size_;
    last_.time_left = absl::Seconds(static_cast<double>(total_steps_ - last_.step) / steps_per_second);
  }
  return last_;
}

}  // namespace atl::worker
