#include "common/base/backoff.h"

#include "gtest/gtest.h"

namespace atl {
namespace {

constexpr BackoffLimits kLimits{.first = absl::Milliseconds(200), .longest = absl::Seconds(5)};

TEST(BackoffTest, DelaysDoubleUpToTheLongest) {
  EXPECT_EQ(BackoffDelay(kLimits, 1, 0), absl::Milliseconds(200));
  EXPECT_EQ(BackoffDelay(kLimits, 2, 0), absl::Milliseconds(400));
  EXPECT_EQ(BackoffDelay(kLimits, 5, 0), absl::Milliseconds(3200));
  EXPECT_EQ(BackoffDelay(kLimits, 6, 0), absl::Seconds(5));
  EXPECT_EQ(BackoffDelay(kLimits, 1'000'000, 0), absl::Seconds(5));
}

TEST(BackoffTest, JitterTakesUpToHalfAway) {
  EXPECT_EQ(BackoffDelay(kLimits, 2, 0.5), absl::Milliseconds(300));
  EXPECT_EQ(BackoffDelay(kLimits, 2, 1), absl::Milliseconds(200));
  EXPECT_EQ(BackoffDelay(kLimits, 50, 1), absl::Milliseconds(2500));
}

TEST(BackoffTest, ALoopBeginsAgainAfterReset) {
  Backoff backoff(kLimits);
  for (int64_t failures = 1; failures <= 10; ++failures) {
    const absl::Duration full = BackoffDelay(kLimits, failures, 0);
    const absl::Duration delay = backoff.Next();
    EXPECT_EQ(backoff.failures(), failures);
    EXPECT_GT(delay, full / 2 - absl::Nanoseconds(1));
    EXPECT_LE(delay, full);
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(), kLimits.first);
}

}  // namespace
}  // namespace atl
