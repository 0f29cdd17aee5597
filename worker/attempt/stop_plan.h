// Decides how an attempt ends that must stop before its last step: with a checkpoint if there is time for one, or else
// at once. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace atl::worker {

// The reason and the deadline of a stop. `deadline` is on the monotonic clock; infinite if the process itself
// continues.
struct StopRequest {
  std::string reason;
  absl::Duration deadline = absl::InfiniteDuration();
};

// Holds the longest of the latest few times; zero before the first.
class LongestOfLatest {
 public:
  void Add(absl::Duration time) {
    times_.push_back(time);
    if (times_.size() > kKept) times_.pop_front();
  }
  absl::Duration value() const {
    return times_.empty() ? absl::ZeroDuration() : *std::max_element(times_.begin(), times_.end());
  }

 private:
  static constexpr size_t kKept = 8;
  std::deque<absl::Duration> times_;
};

struct StopFacts {
  // The time until the deadline.
  absl::Duration left = absl::InfiniteDuration();
  // Measured in this attempt; zero if there is no measurement yet.
  absl::Duration step_time;        // of the last step
  absl::Duration checkpoint_time;  // the longest of the latest ones, from the step's end to the commit
  // Set if the ranks were already commanded to stop after this many more steps.
  std::optional<int64_t> steps_left;
};

struct StopPlan {
  // If false, the attempt is aborted and its task released; the steps since the last commit are lost.
  bool checkpoint = false;
  // The number of further steps before the checkpoint, counted from the last step that the leader has seen.
  int64_t steps = 0;
  // One line for the log and for tests.
  std::string reason;
};

StopPlan DecideStop(const StopFacts& facts);

}  // namespace atl::worker
