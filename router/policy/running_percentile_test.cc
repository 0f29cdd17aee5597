#include "router/policy/running_percentile.h"

#include "gtest/gtest.h"

namespace atl::router {
namespace {

TEST(RunningPercentileTest, IsTheSmallestSampleThatTheShareDoesNotExceed) {
  RunningPercentile running(100);
  EXPECT_EQ(running.Value(0.95), absl::ZeroDuration());
  for (int i = 100; i >= 1; --i) running.Add(absl::Milliseconds(i));
  EXPECT_EQ(running.Value(0.95), absl::Milliseconds(95));
  EXPECT_EQ(running.Value(1), absl::Milliseconds(100));
  EXPECT_EQ(running.Value(0.001), absl::Milliseconds(1));
}

TEST(RunningPercentileTest, OneSampleIsEveryPercentile) {
  RunningPercentile running(100);
  running.Add(absl::Milliseconds(7));
  EXPECT_EQ(running.Value(0.95), absl::Milliseconds(7));
}

TEST(RunningPercentileTest, OutliersDoNotMoveIt) {
  RunningPercentile running(100);
  for (int i = 0; i < 96; ++i) running.Add(absl::Milliseconds(10));
  for (int i = 0; i < 4; ++i) running.Add(absl::Minutes(1));
  EXPECT_EQ(running.Value(0.95), absl::Milliseconds(10));
}

TEST(RunningPercentileTest, ForgetsWhatLeftTheWindow) {
  RunningPercentile running(10);
  for (int i = 0; i < 10; ++i) running.Add(absl::Seconds(1));
  for (int i = 0; i < 9; ++i) running.Add(absl::Milliseconds(1));
  EXPECT_EQ(running.Value(1), absl::Seconds(1));
  running.Add(absl::Milliseconds(1));
  EXPECT_EQ(running.Value(1), absl::Milliseconds(1));
}

}  // namespace
}  // namespace atl::router
