#include "tests/chaos/watcher.h"

#include "gtest/gtest.h"

namespace atl::chaos {
namespace {

namespace pb = atlpb::job::v1;

class WatcherTest : public testing::Test {
 protected:
  // One expert, at `step` by attempt `attempt` of island-1.
  void Report(double seconds, int64_t attempt, int64_t committed, int64_t step,
              pb::Task::State state = pb::Task::STATE_LEASED) {
    pb::Job job;
    pb::Task& task = *job.add_tasks();
    task.set_task_id("j/train_expert-0");
    task.set_kind(pb::TASK_KIND_TRAIN_EXPERT);
    task.set_island_id("island-1");
    task.set_state(state);
    task.set_attempt(attempt);
    task.set_committed_step(committed);
    task.mutable_progress()->set_step(step);
    watcher_.OnJob(job, absl::Seconds(seconds));
  }
  void Kill(double seconds, const std::string& node) {
    watcher_.OnFault({.cycle = 4, .kind = FaultKind::kKill, .node = node, .at = absl::Seconds(seconds)});
  }

  Watcher watcher_;
};

TEST_F(WatcherTest, AKillCostsTheStepsSinceTheCommitAndTheTimeToTheFirstNewOne) {
  Report(1, 1, 0, 5);
  Report(2, 1, 10, 17);
  Kill(3, "island-1/1");
  Report(4, 1, 10, 17);
  Report(5, 1, 10, 0, pb::Task::STATE_READY);
  Report(6, 2, 10, 0);
  EXPECT_EQ(watcher_.unanswered().size(), 1u);
  Report(9, 2, 10, 11);
  EXPECT_TRUE(watcher_.unanswered().empty());
  Report(12, 2, 20, 20, pb::Task::STATE_SUCCEEDED);
  const Watcher::CycleCost& cost = watcher_.cycles().at(4);
  EXPECT_EQ(cost.ended_attempts, 1);
  EXPECT_EQ(cost.repeated_steps, 7);
  EXPECT_EQ(cost.first_new_step, absl::Seconds(6));
  EXPECT_DOUBLE_EQ(watcher_.goodput(), 20.0 / 27);
}

TEST_F(WatcherTest, WhatWasDoneBeforeTheKillStruckLostNothing) {
  Report(1, 1, 10, 19);
  Kill(3, "island-1/0");
  Report(4, 1, 20, 20, pb::Task::STATE_SUCCEEDED);
  EXPECT_TRUE(watcher_.unanswered().empty());
  EXPECT_EQ(watcher_.cycles().at(4).first_new_step, absl::ZeroDuration());
  EXPECT_DOUBLE_EQ(watcher_.goodput(), 1);
}

TEST_F(WatcherTest, OtherIslandsAreNotAsked) {
  Report(1, 1, 10, 19);
  Kill(3, "island-0/0");
  Kill(3, "coordinator");
  EXPECT_TRUE(watcher_.unanswered().empty());
}

}  // namespace
}  // namespace atl::chaos
