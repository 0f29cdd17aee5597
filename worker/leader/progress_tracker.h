// Converts reported steps into progress for users: loss, samples per second, time left. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "common/spec/task.h"

namespace atl::worker {

class ProgressTracker {
 public:
  ProgressTracker(int64_t total_steps, int32_t batch_size) : total_steps_(total_steps), batch_size_(batch_size) {}

  // `now` is monotonic. A step that is not newer changes only the loss in the answer. The speed covers the last kWindow
  // reports.
  spec::Progress OnStep(int64_t step, double loss, std::map<std::string, double> metrics, absl::Duration now);

  const spec::Progress& last() const { return last_; }
  // Returns the time per step over the same reports; zero before the second.
  absl::Duration step_time() const { return step_time_; }

 private:
  static constexpr size_t kWindow = 20;
  struct Report {
    int64_t step;
    absl::Duration at;
  };

  const int64_t total_steps_;
  const int32_t batch_size_;
  std::deque<Report> window_;
  spec::Progress last_;
  absl::Duration step_time_;
};

}  // namespace atl::worker
