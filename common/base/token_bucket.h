// A token bucket: limits an average rate per second and a burst. Pure.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace atl {

struct BucketRate {
  double per_second = 0;  // above 0
  double burst = 0;       // tokens in a full bucket
};

// Starts full. Not thread-safe: used on one executor or under one mutex.
class TokenBucket {
 public:
  // Takes `count` tokens and returns zero. If too few are there, takes none and returns the time until they would be:
  // infinite if `count` exceeds a full bucket. `now` is of a monotonic clock.
  absl::Duration Take(const BucketRate& rate, absl::Duration now, double count) {
    if (count > rate.burst) return absl::InfiniteDuration();
    const absl::Duration full_at = std::max(full_at_, now) + absl::Seconds(count / rate.per_second);
    const absl::Duration wait = full_at - now - absl::Seconds(rate.burst / rate.per_second);
    if (wait > kRounding) return wait;
    full_at_ = full_at;
    return absl::ZeroDuration();
  }

  // Puts back tokens that were taken at this rate and not used.
  void PutBack(const BucketRate& rate, double count) { full_at_ -= absl::Seconds(count / rate.per_second); }

  // Returns whether the bucket is full, like a new one.
  bool IsFull(absl::Duration now) const { return full_at_ <= now; }

 private:
  static constexpr absl::Duration kRounding = absl::Nanoseconds(1);
  absl::Duration full_at_ = -absl::InfiniteDuration();
};

}  // namespace atl
