#include "common/base/token_bucket.h"

#include <vector>

#include "gtest/gtest.h"

namespace atl {
namespace {

struct Step {
  absl::Duration now;
  double count;
  absl::Duration wait;
};

TEST(TokenBucketTest, GivesItsRateAndNoMoreThanABurst) {
  const BucketRate rate{.per_second = 2, .burst = 4};
  const absl::Duration never = absl::InfiniteDuration();
  const std::vector<std::vector<Step>> cases = {
      // A burst at once, then one every half second.
      {{absl::Seconds(7), 4, absl::ZeroDuration()},
       {absl::Seconds(7), 1, absl::Milliseconds(500)},
       {absl::Milliseconds(7'400), 1, absl::Milliseconds(100)},
       {absl::Milliseconds(7'500), 1, absl::ZeroDuration()},
       {absl::Milliseconds(7'500), 1, absl::Milliseconds(500)}},
      // A refused call takes no tokens.
      {{absl::ZeroDuration(), 3, absl::ZeroDuration()},
       {absl::ZeroDuration(), 2, absl::Milliseconds(500)},
       {absl::ZeroDuration(), 1, absl::ZeroDuration()}},
      // However long it waits, it holds no more than a burst.
      {{absl::ZeroDuration(), 4, absl::ZeroDuration()},
       {absl::Hours(1), 4, absl::ZeroDuration()},
       {absl::Hours(1), 4, absl::Seconds(2)}},
      // More than a full bucket never comes.
      {{absl::ZeroDuration(), 4.5, never}, {absl::Hours(1), 5, never}, {absl::Hours(1), 4, absl::ZeroDuration()}},
      // Zero tokens cost nothing.
      {{absl::ZeroDuration(), 4, absl::ZeroDuration()}, {absl::ZeroDuration(), 0, absl::ZeroDuration()}},
  };
  for (size_t c = 0; c < cases.size(); ++c) {
    TokenBucket bucket;
    for (size_t i = 0; i < cases[c].size(); ++i) {
      const Step& step = cases[c][i];
      EXPECT_EQ(bucket.Take(rate, step.now, step.count), step.wait) << "case " << c << ", step " << i;
    }
  }
}

TEST(TokenBucketTest, IsFullAgainWhenWhatWasTakenHasComeBack) {
  TokenBucket bucket;
  EXPECT_TRUE(bucket.IsFull(absl::ZeroDuration()));
  bucket.Take({.per_second = 2, .burst = 4}, absl::Seconds(1), 3);
  EXPECT_FALSE(bucket.IsFull(absl::Milliseconds(2'499)));
  EXPECT_TRUE(bucket.IsFull(absl::Milliseconds(2'500)));
}

TEST(TokenBucketTest, WhatIsPutBackCanBeTakenAgainAndFillsItNoMoreThanFull) {
  const BucketRate rate{.per_second = 2, .burst = 4};
  TokenBucket bucket;
  EXPECT_EQ(bucket.Take(rate, absl::ZeroDuration(), 4), absl::ZeroDuration());
  bucket.PutBack(rate, 3);
  EXPECT_EQ(bucket.Take(rate, absl::ZeroDuration(), 3), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(rate, absl::ZeroDuration(), 1), absl::Milliseconds(500));
  bucket.PutBack(rate, 3);
  EXPECT_EQ(bucket.Take(rate, absl::Hours(1), 4), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(rate, absl::Hours(1), 1), absl::Milliseconds(500));
}

// As many steps as rounding could add up in.
TEST(TokenBucketTest, TheRateHoldsOverManySteps) {
  TokenBucket bucket;
  int taken = 0;
  for (int ms = 0; ms < 60'000; ++ms) {
    if (bucket.Take({.per_second = 10, .burst = 100}, absl::Milliseconds(ms), 1) == absl::ZeroDuration()) ++taken;
  }
  EXPECT_NEAR(taken, 100 + 600, 1);
}

}  // namespace
}  // namespace atl
