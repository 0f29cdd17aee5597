// A token bucket: so much per second on average, so much at once. Pure.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace atl {

struct BucketRate {
  double per_second = 0;  // above 0
  double burst = 0;       // that a bucket holds when it is full
};

// Full at first. One executor's or one mutex's.
class TokenBucket {
 public:
  // Takes `count` tokens and returns zero; or, where they are not there, takes none and returns how long it is until
  // they would be: for ever where they are more than a full bucket. `now` is of a monotonic clock.
  absl::Duration Take(const BucketRate& rate, absl::Duration now, double count) {
    if (count > rate.burst) return absl::InfiniteDuration();
    const absl::Duration full_at = std::max(full_at_, now) + absl::Seconds(count / rate.per_second);
    const absl::Duration wait = full_at - now - absl::Seconds(rate.burst / rate.per_second);
    if (wait > kRounding) return wait;
    full_at_ = full_at;
    return absl::ZeroDuration();
  }

  // Puts back what was taken at this rate and not used.
  void PutBack(const BucketRate& rate, double count) { full_at_ -= absl::Seconds(count / rate.per_second); }

  // Whether it is as good as new.
  bool IsFull(absl::Duration now) const { return full_at_ <= now; }

 private:
  static constexpr absl::Duration kRounding = absl::Nanoseconds(1);
  absl::Duration full_at_ = -absl::InfiniteDuration();
};

}  // namespace atl
