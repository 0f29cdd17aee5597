// Delays between retries of an operation that fails for a while.
#pragma once

#include <cstdint>

#include "absl/random/random.h"
#include "absl/time/time.h"

namespace atl {

struct BackoffLimits {
  absl::Duration first;
  absl::Duration longest;
};

// Returns the delay after `failures` (at least one) failures in a row: `first`, doubled with every further failure, at
// most `longest`. `jitter` in [0, 1) shortens the delay by up to half, so that many callers do not retry at once. Pure.
absl::Duration BackoffDelay(const BackoffLimits& limits, int64_t failures, double jitter);

// The delays of one retry loop. Not thread-safe.
class Backoff {
 public:
  explicit Backoff(const BackoffLimits& limits) : limits_(limits) {}

  // Counts a failure and returns the delay before the next try, with jitter.
  absl::Duration Next() { return BackoffDelay(limits_, ++failures_, absl::Uniform(random_, 0.0, 1.0)); }
  // Restarts at the first delay.
  void Reset() { failures_ = 0; }
  // The failures since the last Reset.
  int64_t failures() const { return failures_; }

 private:
  const BackoffLimits limits_;
  int64_t failures_ = 0;
  absl::BitGen random_;
};

}  // namespace atl
