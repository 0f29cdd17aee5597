// Loads: arrivals, and what they amount to.
#include <cmath>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bench/arrivals.h"
#include "tests/bench/load_figures.h"

namespace atl::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(ArrivalsTest, TheSameSeedGivesTheSameTimesAndAnotherOneOthers) {
  const auto first = PoissonArrivals(5, absl::Seconds(20), 7);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, *PoissonArrivals(5, absl::Seconds(20), 7));
  EXPECT_NE(*first, *PoissonArrivals(5, absl::Seconds(20), 8));
  // A longer load begins like the shorter one.
  const auto longer = PoissonArrivals(5, absl::Seconds(40), 7);
  ASSERT_GT(longer->size(), first->size());
  EXPECT_TRUE(std::equal(first->begin(), first->end(), longer->begin()));
}

TEST(ArrivalsTest, GapsAreExponential) {
  const auto arrivals = PoissonArrivals(100, absl::Seconds(200), 1);
  ASSERT_TRUE(arrivals.ok());
  EXPECT_NEAR(static_cast<double>(arrivals->size()), 20'000, 4 * std::sqrt(20'000));
  double above_mean = 0;
  absl::Duration before;
  for (const absl::Duration at : *arrivals) {
    ASSERT_GE(at, before);
    ASSERT_LT(at, absl::Seconds(200));
    above_mean += at - before > absl::Milliseconds(10) ? 1 : 0;
    before = at;
  }
  EXPECT_NEAR(above_mean / static_cast<double>(arrivals->size()), std::exp(-1), 0.015);
}

TEST(ArrivalsTest, WhatIsNoLoadIsRefused) {
  const double nan = std::nan("");
  for (const auto& [rate, seconds] : std::vector<std::pair<double, double>>{
           {0, 1}, {-1, 1}, {nan, 1}, {1, 0}, {1, -1}, {1e5, 11}, {1, INFINITY}, {INFINITY, 1}}) {
    EXPECT_EQ(ErrorReason(PoissonArrivals(rate, absl::Seconds(seconds), 0).status()), "OUT_OF_RANGE")
        << rate << " " << seconds;
  }
}

TEST(PercentileTest, IsTheNearestRank) {
  std::vector<absl::Duration> values;
  for (const int i : {9, 3, 1, 7, 5, 10, 2, 8, 6, 4}) values.push_back(absl::Seconds(i));
  EXPECT_EQ(Percentile(values, 0.5), absl::Seconds(5));
  EXPECT_EQ(Percentile(values, 0.9), absl::Seconds(9));
  EXPECT_EQ(Percentile(values, 0.99), absl::Seconds(10));
  EXPECT_EQ(Percentile(values, 1), absl::Seconds(10));
  EXPECT_EQ(Percentile(values, 0), absl::Seconds(1));
  EXPECT_EQ(Percentile({}, 0.5), absl::ZeroDuration());
}

TEST(LoadFiguresTest, LatenciesCountFromTheScheduleAndRefusalsApart) {
  const std::vector<RequestOutcome> outcomes = {
      // Sent a second late: the user waited all the same.
      {.scheduled = absl::Seconds(1),
       .sent = absl::Seconds(2),
       .ended = absl::Seconds(5),
       .first_image = absl::Seconds(3),
       .images = 4,
       .version = "v1"},
      {.scheduled = absl::Seconds(2),
       .sent = absl::Seconds(2),
       .ended = absl::Seconds(3),
       .first_image = absl::Seconds(3),
       .images = 4,
       .version = "v2"},
      {.scheduled = absl::Seconds(3),
       .sent = absl::Seconds(3),
       .ended = absl::Seconds(9),
       .images = 2,  // they came, but the request failed
       .status = MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXPIRED", "late")},
      {.status = MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"),
       .retry_delay = absl::Seconds(2)},
      {.status = MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full"),
       .retry_delay = absl::Seconds(1)},
      {.status = MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full")},
  };
  const LoadFigures figures = Summarise(outcomes);
  EXPECT_EQ(figures.requests, 6);
  EXPECT_EQ(figures.done, 2);
  EXPECT_EQ(figures.failed, 1);
  EXPECT_EQ(figures.refused, 3);
  EXPECT_EQ(figures.refused_with_delay, 2);
  EXPECT_EQ(figures.least_retry_delay, absl::Seconds(1));
  EXPECT_EQ(figures.most_retry_delay, absl::Seconds(2));
  EXPECT_THAT(figures.failures, ElementsAre(Pair("DEADLINE_EXPIRED", 1)));
  EXPECT_THAT(figures.versions, ElementsAre(Pair("v1", 1), Pair("v2", 1)));
  EXPECT_EQ(figures.images, 8);
  EXPECT_DOUBLE_EQ(figures.images_per_second, 8 / 5.0) << "from the first schedule (0 s) to the last end (5 s)";
  EXPECT_EQ(figures.latency.p50, absl::Seconds(1));
  EXPECT_EQ(figures.latency.p99, absl::Seconds(4));
  EXPECT_EQ(figures.first_image.most, absl::Seconds(2));
  EXPECT_EQ(figures.latest_sent, absl::Seconds(1));
}

TEST(LoadFiguresTest, NothingIsZero) {
  const LoadFigures figures = Summarise({});
  EXPECT_EQ(figures.images_per_second, 0);
  EXPECT_EQ(figures.latency.p99, absl::ZeroDuration());
}

}  // namespace
}  // namespace atl::bench
