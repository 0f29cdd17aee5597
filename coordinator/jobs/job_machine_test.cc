#include "coordinator/jobs/job_machine.h"

#include "common/base/errors.h"
#include "coordinator/jobs/task_graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::jobs {
namespace {

using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

JobRecord NewJob(int32_t budget = 2) {
  JobRecord record;
  record.job.job_id = "j";
  record.job.spec.experts = 2;
  record.job.spec.features.kind = "column";
  record.job.spec.failure_budget = budget;
  record.tasks = ExpandTasks("j", record.job.spec, 1);
  return record;
}

// Grants and finishes a task.
void Finish(JobRecord& record, std::string_view task_id) {
  const int64_t attempt = FindTask(record, task_id)->attempt + 1;
  ASSERT_TRUE(Grant(record, task_id, attempt, "i").ok()) << task_id;
  ASSERT_TRUE(Succeed(record, task_id, {}, kNow).ok()) << task_id;
}

TEST(JobMachineTest, FinishingTasksUnblocksExactlyTheirDependents) {
  JobRecord record = NewJob();
  EXPECT_EQ(record.job.state, JobState::kPending);
  Finish(record, "j/featurize-0");
  EXPECT_EQ(record.job.state, JobState::kRunning);
  EXPECT_EQ(FindTask(record, "j/cluster")->state, TaskState::kReady);
  EXPECT_EQ(FindTask(record, "j/partition-0")->state, TaskState::kBlocked);
  Finish(record, "j/cluster");
  Finish(record, "j/partition-0");
  for (const char* id : {"j/train_expert-0", "j/train_expert-1", "j/train_router"}) {
    EXPECT_EQ(FindTask(record, id)->state, TaskState::kReady);
    Finish(record, id);
  }
  Finish(record, "j/publish");
  EXPECT_EQ(record.job.state, JobState::kSucceeded);
  EXPECT_EQ(record.job.model_version, "j");
  EXPECT_EQ(record.job.end_time, kNow);
}

TEST(JobMachineTest, AReadyTaskGoesOnFromTheStepThatWasTakenBack) {
  JobRecord record = NewJob();
  Finish(record, "j/featurize-0");
  Task& task = *FindTask(record, "j/cluster");
  task.attempt = 2;
  task.committed_step = 10;
  ASSERT_TRUE(Adopt(record, "j/cluster", 5, 30).ok());
  EXPECT_EQ(task.committed_step, 30);
  EXPECT_EQ(task.attempt, 5);
  const auto back = Adopt(record, "j/cluster", 3, 0);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->changed_tasks, std::set<std::string>{"j/cluster"});
  EXPECT_EQ(task.committed_step, 0) << "nothing of it is whole";
  EXPECT_EQ(task.attempt, 5) << "attempts only grow";
  ASSERT_TRUE(Grant(record, "j/cluster", 6, "i").ok());
  const JobRecord before = record;
  EXPECT_EQ(ErrorReason(Adopt(record, "j/cluster", 7, 40).status()), "TASK_NOT_CLAIMABLE");
  EXPECT_EQ(ErrorReason(Adopt(record, "j/featurize-0", 7, 40).status()), "TASK_ENDED");
  EXPECT_EQ(record, before);
}

TEST(JobMachineTest, OnlyAttemptsWithoutProgressOrWithAnErrorCount) {
  struct Case {
    AttemptOutcome outcome;
    bool committed;
    bool permanent;
    int32_t failures;
    TaskState state;
  };
  const Case cases[] = {
      {AttemptOutcome::kReleased, false, false, 1, TaskState::kReady},
      {AttemptOutcome::kReleased, true, false, 0, TaskState::kReady},
      {AttemptOutcome::kExpired, false, false, 1, TaskState::kReady},
      {AttemptOutcome::kExpired, true, false, 0, TaskState::kReady},
      {AttemptOutcome::kReplaced, false, false, 1, TaskState::kReady},
      {AttemptOutcome::kReplaced, true, false, 0, TaskState::kReady},
      {AttemptOutcome::kFailed, false, false, 1, TaskState::kReady},
      {AttemptOutcome::kFailed, true, false, 1, TaskState::kReady},
      {AttemptOutcome::kFailed, true, true, 1, TaskState::kFailed},
      {AttemptOutcome::kRestored, false, false, 0, TaskState::kReady},
  };
  for (const Case& c : cases) {
    JobRecord record = NewJob();
    ASSERT_TRUE(Grant(record, "j/featurize-0", 1, "i").ok());
    if (c.committed) {
      ASSERT_TRUE(CommitStep(record, "j/featurize-0", 10).ok());
    }
    const auto effect = EndAttempt(record, "j/featurize-0", {c.outcome, c.permanent, "why"}, kNow);
    ASSERT_TRUE(effect.ok()) << effect.status();
    const Task& task = *FindTask(record, "j/featurize-0");
    EXPECT_EQ(task.failures, c.failures) << ToString(c.outcome) << c.committed;
    EXPECT_EQ(task.state, c.state) << effect->reason;
    ASSERT_FALSE(effect->ended_attempts.empty());
    EXPECT_EQ(effect->ended_attempts[0], (EndedAttempt{"j/featurize-0", 1, c.outcome, "why"}));
  }
}

TEST(JobMachineTest, WhatTheCoordinatorAskedForDoesNotCount) {
  JobRecord record = NewJob(1);
  ASSERT_TRUE(Grant(record, "j/featurize-0", 1, "i").ok());
  ASSERT_TRUE(EndAttempt(record, "j/featurize-0", {AttemptOutcome::kReleased, false, "moved", true}, kNow).ok());
  EXPECT_EQ(FindTask(record, "j/featurize-0")->failures, 0);
  ASSERT_TRUE(Grant(record, "j/featurize-0", 2, "i").ok());
  ASSERT_TRUE(EndAttempt(record, "j/featurize-0", {AttemptOutcome::kFailed, false, "disk", true}, kNow).ok());
  EXPECT_EQ(record.job.state, JobState::kFailed) << "an error is an error";
}

TEST(JobMachineTest, ATaskMovesUntilItIsGrantedAgain) {
  JobRecord record = NewJob();
  const absl::Time until = kNow + absl::Minutes(10);
  const auto reason = [&](std::string_view task_id, std::string_view to) {
    const JobRecord before = record;
    const auto effect = MoveTask(record, task_id, to, until);
    if (effect.ok()) return std::string("ok");
    EXPECT_EQ(record, before);
    return ErrorReason(effect.status());
  };
  EXPECT_EQ(reason("j/featurize-0", ""), "TASK_NOT_LEASED");
  EXPECT_EQ(reason("j/cluster", "b"), "TASK_NOT_CLAIMABLE");
  EXPECT_EQ(reason("j/none", "b"), "TASK_UNKNOWN");
  EXPECT_EQ(reason("j/featurize-0", "b"), "ok");
  EXPECT_EQ(FindTask(record, "j/featurize-0")->move, (TaskMove{"", "b", until}));
  ASSERT_TRUE(Grant(record, "j/featurize-0", 1, "a").ok());
  EXPECT_EQ(FindTask(record, "j/featurize-0")->move, TaskMove());
  EXPECT_EQ(reason("j/featurize-0", "a"), "TASK_ALREADY_THERE");
  EXPECT_EQ(reason("j/featurize-0", ""), "ok");
  EXPECT_EQ(FindTask(record, "j/featurize-0")->move, (TaskMove{"a", "", until}));
  EXPECT_EQ(reason("j/featurize-0", "b"), "ok");
  ASSERT_TRUE(Succeed(record, "j/featurize-0", {}, kNow).ok());
  EXPECT_EQ(reason("j/featurize-0", "b"), "TASK_ENDED");
}

TEST(JobMachineTest, SpentBudgetFailsTaskAndJobAndCancelsTheRest) {
  JobRecord record = NewJob(2);
  for (int64_t attempt = 1; attempt <= 2; ++attempt) {
    ASSERT_TRUE(Grant(record, "j/featurize-0", attempt, "i").ok());
    ASSERT_TRUE(EndAttempt(record, "j/featurize-0", {AttemptOutcome::kFailed, false, "disk"}, kNow).ok());
  }
  EXPECT_EQ(FindTask(record, "j/featurize-0")->state, TaskState::kFailed);
  EXPECT_EQ(FindTask(record, "j/publish")->state, TaskState::kCancelled);
  EXPECT_EQ(record.job.state, JobState::kFailed);
  EXPECT_THAT(record.job.message, HasSubstr("j/featurize-0 failed 2 times of 2 allowed: disk"));
}

TEST(JobMachineTest, ProgressOfAnEarlierAttemptDoesNotExcuseTheNext) {
  JobRecord record = NewJob(5);
  ASSERT_TRUE(Grant(record, "j/featurize-0", 1, "i").ok());
  ASSERT_TRUE(CommitStep(record, "j/featurize-0", 10).ok());
  ASSERT_TRUE(EndAttempt(record, "j/featurize-0", {AttemptOutcome::kReleased, false, ""}, kNow).ok());
  ASSERT_TRUE(Grant(record, "j/featurize-0", 2, "i").ok());
  ASSERT_TRUE(EndAttempt(record, "j/featurize-0", {AttemptOutcome::kReleased, false, ""}, kNow).ok());
  EXPECT_EQ(FindTask(record, "j/featurize-0")->failures, 1);
}

// A job whose first expert trains in its first attempt.
JobRecord TrainingJob() {
  JobRecord record = NewJob();
  for (const char* id : {"j/featurize-0", "j/cluster", "j/partition-0"}) Finish(record, id);
  EXPECT_TRUE(Grant(record, "j/train_expert-0", 1, "i").ok());
  return record;
}

RollbackRequest Diverged(int64_t first_bad, int64_t step, const std::string& evidence = "e") {
  return {.before_step = first_bad,
          .through_step = step,
          .reason = "LOSS_EXPLODED",
          .message = "diverged",
          .evidence_uri = evidence};
}

TEST(JobMachineTest, ARollbackGoesToTheNewestCheckpointBeforeAndSkipsWhatWasReadSince) {
  struct Case {
    RollbackRequest request;
    std::vector<int64_t> committed;
    std::vector<spec::SkippedWindow> before;  // skipped by earlier rollbacks
    int64_t to_step;
    spec::SkippedWindow skipped;
  };
  const Case cases[] = {
      {Diverged(12, 12), {5, 10}, {}, 10, {11, 2}},
      {Diverged(11, 11), {5, 10}, {}, 10, {11, 1}},
      {Diverged(12, 12), {}, {}, 0, {1, 12}},
      {Diverged(9, 12), {5, 10}, {}, 5, {6, 7}},         // the newest lies in what is not trusted
      {Diverged(13, 13), {10}, {{11, 2}}, 10, {13, 3}},  // steps 11, 12, 13 read what is 13, 14, 15 without skips
      {Diverged(4, 4), {2}, {{11, 2}}, 2, {3, 2}},
      {{.before_step = 10, .message = "damaged"}, {5, 10}, {}, 5, {}},
      {{.before_step = 10, .message = "damaged"}, {10}, {{3, 1}}, 0, {}},
  };
  for (const Case& c : cases) {
    JobRecord record = TrainingJob();
    Task& task = *FindTask(record, "j/train_expert-0");
    task.committed_step = c.committed.empty() ? 0 : c.committed.back();
    for (const spec::SkippedWindow& window : c.before) task.rollbacks.push_back({.skipped = window});
    const auto effect = RollBack(record, task.task_id, c.request, c.committed, kNow);
    ASSERT_TRUE(effect.ok()) << effect.status();
    EXPECT_EQ(task.state, TaskState::kReady);
    EXPECT_EQ(task.failures, 0) << "no failure budget is asked";
    EXPECT_EQ(task.committed_step, c.to_step);
    const Rollback& rollback = task.rollbacks.back();
    EXPECT_EQ(task.rollbacks.size(), c.before.size() + 1);
    EXPECT_EQ(rollback.attempt, 1);
    EXPECT_EQ(rollback.to_step, c.to_step);
    EXPECT_EQ(rollback.skipped, c.skipped) << rollback.skipped.first_step << "+" << rollback.skipped.steps;
    EXPECT_EQ(rollback.time, kNow);
    ASSERT_EQ(effect->ended_attempts.size(), 1u);
    EXPECT_EQ(effect->ended_attempts[0],
              (EndedAttempt{task.task_id, 1, AttemptOutcome::kRolledBack, c.request.message, c.request.reason}));
  }
}

TEST(JobMachineTest, ATaskThatDivergesAThirdTimeFailsWithAllEvidenceNamed) {
  JobRecord record = TrainingJob();
  const Task& task = *FindTask(record, "j/train_expert-0");
  // Rollbacks to replace a damaged checkpoint do not count as divergence.
  ASSERT_TRUE(RollBack(record, task.task_id, {.before_step = 10, .message = "damaged"}, {10}, kNow).ok());
  for (int64_t attempt = 2; attempt <= 4; ++attempt) {
    EXPECT_EQ(record.job.state, JobState::kRunning);
    ASSERT_TRUE(Grant(record, task.task_id, attempt, "i").ok());
    const std::string evidence = "file:///e" + std::to_string(attempt);
    ASSERT_TRUE(RollBack(record, task.task_id, Diverged(12, 12, evidence), {10}, kNow).ok());
  }
  EXPECT_EQ(task.message,
            "diverged once more after 2 rollbacks: diverged; evidence at file:///e2, file:///e3, file:///e4");
  EXPECT_EQ(task.rollbacks[1].skipped, (spec::SkippedWindow{11, 2}));
  EXPECT_EQ(task.rollbacks[2].skipped, (spec::SkippedWindow{13, 2}));
  EXPECT_EQ(task.rollbacks.size(), 3u);
  EXPECT_EQ(task.state, TaskState::kFailed);
  EXPECT_EQ(record.job.state, JobState::kFailed);
  EXPECT_THAT(record.job.message, HasSubstr("task j/train_expert-0 failed: diverged once more"));
  EXPECT_EQ(FindTask(record, "j/publish")->state, TaskState::kCancelled);
}

TEST(JobMachineTest, ARollbackThatMakesNoSenseChangesNothing) {
  JobRecord record = TrainingJob();
  ASSERT_TRUE(Grant(record, "j/train_expert-1", 1, "k").ok());
  ASSERT_TRUE(EndAttempt(record, "j/train_expert-1", {AttemptOutcome::kReleased, false, ""}, kNow).ok());
  const JobRecord before = record;
  const std::vector<int64_t> committed = {10};
  const auto reason = [&](const char* task, const RollbackRequest& request) {
    return ErrorReason(RollBack(record, task, request, committed, kNow).status());
  };
  EXPECT_EQ(reason("j/train_expert-0", Diverged(0, 5)), "INVALID_ROLLBACK");
  EXPECT_EQ(reason("j/train_expert-0", Diverged(6, 5)), "INVALID_ROLLBACK");
  EXPECT_EQ(reason("j/train_expert-0", Diverged(5, -1)), "INVALID_ROLLBACK");
  EXPECT_EQ(reason("j/train_expert-0", Diverged(5, int64_t{1} << 31)), "INVALID_ROLLBACK") << "no spec has that many";
  EXPECT_EQ(reason("j/train_expert-0", {.before_step = 11}), "CHECKPOINT_UNKNOWN");
  EXPECT_EQ(reason("j/train_expert-1", Diverged(5, 5)), "TASK_NOT_LEASED");
  EXPECT_EQ(reason("j/cluster", Diverged(5, 5)), "TASK_ENDED");
  EXPECT_EQ(record, before);
  JobRecord early = NewJob();
  ASSERT_TRUE(Grant(early, "j/featurize-0", 1, "i").ok());
  EXPECT_EQ(ErrorReason(RollBack(early, "j/featurize-0", Diverged(5, 5), {}, kNow).status()), "NOT_A_TRAINING_TASK");
}

TEST(JobMachineTest, CancelEndsEveryOpenTaskAndItsAttempt) {
  JobRecord record = NewJob();
  ASSERT_TRUE(Grant(record, "j/featurize-0", 1, "i").ok());
  const auto effect = Cancel(record, "wrong data", kNow);
  ASSERT_TRUE(effect.ok());
  EXPECT_EQ(record.job.state, JobState::kCancelled);
  EXPECT_EQ(record.job.message, "cancelled: wrong data");
  ASSERT_EQ(effect->ended_attempts.size(), 1u);
  EXPECT_EQ(effect->ended_attempts[0].outcome, AttemptOutcome::kCancelled);
  EXPECT_EQ(effect->changed_tasks.size(), record.tasks.size());
  EXPECT_EQ(ErrorReason(Cancel(record, "", kNow).status()), "JOB_ENDED");
}

TEST(JobMachineTest, EventsThatTheStateDoesNotAllowChangeNothing) {
  JobRecord record = NewJob();
  const JobRecord before = record;
  EXPECT_EQ(ErrorReason(Grant(record, "j/none", 1, "i").status()), "TASK_UNKNOWN");
  EXPECT_EQ(ErrorReason(Grant(record, "j/publish", 1, "i").status()), "TASK_NOT_CLAIMABLE");
  EXPECT_EQ(ErrorReason(CommitStep(record, "j/featurize-0", 1).status()), "TASK_NOT_LEASED");
  EXPECT_EQ(ErrorReason(Succeed(record, "j/featurize-0", {}, kNow).status()), "TASK_NOT_LEASED");
  EXPECT_EQ(record, before);
  Finish(record, "j/featurize-0");
  EXPECT_EQ(ErrorReason(Succeed(record, "j/featurize-0", {}, kNow).status()), "TASK_ENDED");
}

TEST(JobMachineTest, StepsOnlyGrow) {
  JobRecord record = NewJob();
  ASSERT_TRUE(Grant(record, "j/featurize-0", 1, "i").ok());
  ASSERT_TRUE(CommitStep(record, "j/featurize-0", 20).ok());
  for (const int64_t step : {0, 10, 20}) {
    EXPECT_EQ(ErrorReason(CommitStep(record, "j/featurize-0", step).status()), "STEP_NOT_NEWER");
  }
  EXPECT_TRUE(CommitStep(record, "j/featurize-0", 21).ok());
}

TEST(JobMachineTest, FinalStatesHaveNoWayOut) {
  for (int from = 1; from <= 6; ++from) {
    for (int to = 1; to <= 6; ++to) {
      const auto state = static_cast<TaskState>(from);
      if (IsFinal(state)) {
        EXPECT_FALSE(MayBecome(state, static_cast<TaskState>(to)));
      }
    }
  }
  for (int from = 3; from <= 5; ++from) {
    for (int to = 1; to <= 5; ++to) EXPECT_FALSE(MayBecome(static_cast<JobState>(from), static_cast<JobState>(to)));
  }
}

}  // namespace
}  // namespace atl::jobs
