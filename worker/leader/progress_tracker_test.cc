#include "worker/leader/progress_tracker.h"

#include <gtest/gtest.h>

namespace atl::worker {
namespace {

TEST(ProgressTracker, SpeedAndTimeLeftFollowTheReports) {
  ProgressTracker tracker(100, 64);
  spec::Progress progress = tracker.OnStep(10, 2.0, {}, absl::Seconds(1));
  EXPECT_EQ(progress.step, 10);
  EXPECT_EQ(progress.total_steps, 100);
  EXPECT_EQ(progress.samples_per_second, 0);
  progress = tracker.OnStep(20, 1.5, {{"accuracy", 0.5}}, absl::Seconds(2));
  EXPECT_DOUBLE_EQ(progress.samples_per_second, 640);
  EXPECT_EQ(progress.time_left, absl::Seconds(8));
  EXPECT_EQ(progress.loss, 1.5);
  EXPECT_EQ(progress.metrics.at("accuracy"), 0.5);
}

TEST(ProgressTracker, AnOldSpeedIsForgotten) {
  ProgressTracker tracker(1000, 1);
  absl::Duration now;
  for (int64_t step = 1; step <= 40; ++step) {
    now += step < 20 ? absl::Seconds(10) : absl::Seconds(1);
    tracker.OnStep(step, 0, {}, now);
  }
  EXPECT_DOUBLE_EQ(tracker.last().samples_per_second, 1);
}

TEST(ProgressTracker, StepsNeverGoBack) {
  ProgressTracker tracker(100, 1);
  tracker.OnStep(10, 1, {}, absl::Seconds(1));
  EXPECT_EQ(tracker.OnStep(9, 1, {}, absl::Seconds(2)).step, 10);
}

}  // namespace
}  // namespace atl::worker
