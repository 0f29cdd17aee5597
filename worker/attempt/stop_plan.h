// How an attempt ends that is asked to stop before its last step: with a checkpoint where there is time for one, else
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

// Who asks and until when. `deadline` is on the monotonic clock; never where the process itself goes on.
struct StopRequest {
  std::string reason;
  absl::Duration deadline = absl::InfiniteDuration();
};

// The longest of the latest few times; zero before the first.
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
  // Until the deadline.
  absl::Duration left = absl::InfiniteDuration();
  // As measured in this attempt; zero where nothing was yet.
  absl::Duration step_time;        // of the last step
  absl::Duration checkpoint_time;  // the longest of the latest ones, from the step's end to the commit
  // Set: the ranks were told already to stop after so many more steps.
  std::optional<int64_t> steps_left;
};

struct StopPlan {
  // Else the attempt is aborted and its task given back: what was done since the last commit is lost.
  bool checkpoint = false;
  // With a checkpoint: how many further steps are done first, counted from the last one that the leader has seen.
  int64_t steps = 0;
  // One line for the log and for tests.
  std::string reason;
};

StopPlan DecideStop(const StopFacts& facts);

}  // namespace atl::worker
