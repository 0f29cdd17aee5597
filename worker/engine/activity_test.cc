#include "worker/engine/activity.h"

#include "common/base/fake_clock.h"
#include "gtest/gtest.h"

namespace atl::engine {
namespace {

using schedule::Action;
using schedule::ActionKind;

class ActivityTest : public testing::Test {
 protected:
  // A step of some actions, 100 ms each, with 50 ms of waiting before each.
  void RunSteps(int steps) {
    for (int step = 0; step < steps; ++step) {
      activity_.BeginStep();
      for (int32_t micro_batch = 0; micro_batch < 4; ++micro_batch) {
        Wait(0.05);
        const WorkScope work(&activity_, Action{ActionKind::kForward, 1, micro_batch});
        Wait(0.1);
      }
      activity_.EndStep();
    }
  }
  void Wait(double seconds) { clock_.Advance(absl::Seconds(seconds)); }
  std::string Found() const {
    const std::optional<Overdue> overdue = activity_.FindOverdue();
    return !overdue ? "" : (overdue->waiting ? "waits: " : "works: ") + overdue->what;
  }

  FakeClock clock_;
  Activity activity_{&clock_};
};

TEST_F(ActivityTest, WorkThatHangsIsOverdue) {
  RunSteps(1);
  activity_.BeginStep();
  activity_.BeginWork(Action{ActionKind::kForward, 1, 2});
  Wait(2.9);
  EXPECT_EQ(Found(), "") << "a busy machine is no hang";
  Wait(0.3);
  EXPECT_EQ(Found(), "works: 1F2 has taken 3.2 s, and 0.100 s at most before");
  activity_.EndWork();
  EXPECT_EQ(Found(), "");
}

TEST_F(ActivityTest, WhatIsSlowByNatureIsNot) {
  activity_.BeginStep();
  for (int i = 0; i < 3; ++i) {
    const WorkScope work(&activity_, "optimizer");
    Wait(2);
  }
  activity_.BeginWork("optimizer");
  Wait(7.9);
  EXPECT_EQ(Found(), "");
  Wait(0.2);
  EXPECT_EQ(Found(), "works: optimizer has taken 8.1 s, and 2.000 s at most before");
}

TEST_F(ActivityTest, TheFirstTimesTakeTheirTime) {
  RunSteps(1);
  activity_.BeginStep();
  activity_.BeginWork(Action{ActionKind::kForward, 0, 0});
  Wait(59);
  EXPECT_EQ(Found(), "") << "another stage is another kind";
  Wait(2);
  EXPECT_EQ(Found(), "works: 0F0 has taken 61.0 s, and 0.000 s at most before");
}

TEST_F(ActivityTest, ReadingHasItsOwnTime) {
  RunSteps(1);
  activity_.BeginStep();
  activity_.BeginWork(Action{ActionKind::kForward, 1, 2});
  Wait(2);
  activity_.BeginReading();
  Wait(59);
  EXPECT_EQ(Found(), "") << "a file comes over a slow network";
  activity_.EndReading();
  Wait(0.9);
  EXPECT_EQ(Found(), "") << "what came before counts, and the reading does not";
  Wait(0.3);
  EXPECT_EQ(Found(), "works: 1F2 has taken 3.2 s, and 0.100 s at most before");
  activity_.EndWork();
  {
    const WorkScope work(&activity_, Action{ActionKind::kForward, 1, 3});
    const ReadingScope reading(&activity_);
    Wait(61);
    EXPECT_EQ(Found(), "works: 1F3: reading from the blob store has taken 61.0 s");
  }
  EXPECT_EQ(Found(), "");
  activity_.EndStep();
  const ReadingScope reading(&activity_);
  Wait(1000);
  EXPECT_EQ(Found(), "") << "outside of steps nothing is judged";
}

TEST_F(ActivityTest, WaitingIsToldFromWork) {
  RunSteps(1);
  activity_.BeginStep();
  Wait(3.1);
  EXPECT_EQ(Found(), "waits: waiting has taken 3.1 s, and 0.050 s at most before");
}

TEST_F(ActivityTest, WaitingWithANameHasItsOwnTime) {
  RunSteps(1);
  activity_.BeginStep();
  {
    const WaitingScope waiting(&activity_, "norms");
    Wait(59);
    EXPECT_EQ(Found(), "") << "a device may have most of its first step to do";
    Wait(2);
    EXPECT_EQ(Found(), "waits: norms has taken 61.0 s, and 0.000 s at most before");
  }
  EXPECT_EQ(Found(), "");
  Wait(3.1);
  EXPECT_EQ(Found(), "waits: waiting has taken 3.1 s, and 0.050 s at most before");
}

TEST_F(ActivityTest, NothingIsJudgedBetweenSteps) {
  EXPECT_EQ(Found(), "");
  RunSteps(2);
  Wait(1000);
  EXPECT_EQ(Found(), "") << "a checkpoint is loaded, or nothing is to be done";
}

TEST(WorkScopeTest, NeedsNobodyWhoAsks) {
  const WorkScope work(nullptr, "optimizer");
  const WaitingScope waiting(nullptr, "norms");
  const ReadingScope reading(nullptr);
}

}  // namespace
}  // namespace atl::engine
