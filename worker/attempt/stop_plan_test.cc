#include "worker/attempt/stop_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::worker {
namespace {

using ::testing::HasSubstr;

TEST(StopPlanTest, ACheckpointIsLeftWhereItFits) {
  struct Case {
    const char* name;
    double left;  // < 0: no deadline
    double step;
    double checkpoint;
    bool leaves_checkpoint;
    int64_t steps;
  };
  const Case cases[] = {
      {"two minutes for a small model", 120, 0.25, 1, true, 4},
      {"two minutes for a model that takes one to write", 120, 5, 60, true, 3},
      {"two minutes for one that takes longer", 120, 5, 115, false, 0},
      {"two seconds are enough for a tiny one", 2, 0.05, 0.1, true, 12},
      {"two seconds, steps of a second", 2, 1, 0.1, false, 0},
      {"exactly enough", 4 * 0.25 + 1 + 0.5, 0.25, 1, true, 4},
      {"a moment too short", 4 * 0.25 + 1 + 0.49, 0.25, 1, false, 0},
      {"no time", 0, 0.01, 0.01, false, 0},
      {"the deadline is over", -0.001, 0.01, 0.01, false, 0},
      {"steps that are over before a message arrives", 60, 0.0001, 0.1, true, 502},
      {"nothing was measured, the usual grace", 20, 0, 0, true, 2},
      {"nothing was measured, two seconds", 2, 0, 0, false, 0},
      {"no checkpoint was measured", 3, 0.25, 0, false, 0},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const StopPlan plan = DecideStop({.left = absl::Seconds(test.left),
                                      .step_time = absl::Seconds(test.step),
                                      .checkpoint_time = absl::Seconds(test.checkpoint)});
    EXPECT_EQ(plan.checkpoint, test.leaves_checkpoint) << plan.reason;
    EXPECT_EQ(plan.steps, test.steps) << plan.reason;
    EXPECT_THAT(plan.reason, HasSubstr(test.leaves_checkpoint ? "a checkpoint fits" : "released at once"));
  }
}

TEST(StopPlanTest, WithoutADeadlineThereIsTimeForTheSlowestModel) {
  const StopPlan plan = DecideStop({.step_time = absl::Hours(1), .checkpoint_time = absl::Hours(5)});
  EXPECT_TRUE(plan.checkpoint);
  EXPECT_EQ(plan.steps, 3);
}

TEST(StopPlanTest, AStopThatIsUnderWayNeedsOnlyWhatIsLeftOfIt) {
  StopFacts facts{.left = absl::Seconds(4), .step_time = absl::Seconds(1), .checkpoint_time = absl::Seconds(1)};
  EXPECT_FALSE(DecideStop(facts).checkpoint);
  facts.steps_left = 1;
  EXPECT_TRUE(DecideStop(facts).checkpoint);
  facts.left = absl::Seconds(2);
  EXPECT_FALSE(DecideStop(facts).checkpoint);
}

TEST(LongestOfLatestTest, OneSlowTimeIsForgotten) {
  LongestOfLatest times;
  EXPECT_EQ(times.value(), absl::ZeroDuration());
  times.Add(absl::Seconds(60));
  for (int i = 0; i < 7; ++i) times.Add(absl::Seconds(i));
  EXPECT_EQ(times.value(), absl::Seconds(60));
  times.Add(absl::Seconds(1));
  EXPECT_EQ(times.value(), absl::Seconds(6));
}

}  // namespace
}  // namespace atl::worker
