// Text for people: tables, jobs, progress.
#include <sstream>

#include "client/exit_code.h"
#include "client/job_text.h"
#include "client/table.h"
#include "client/watch_view.h"
#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace atl::client {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::Task;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TableTest, ColumnsAlignAndTheLastIsCutAtTheWidth) {
  Table table({"A", "LONG NAME", "MESSAGE"});
  table.Add({"größe", "x", "a message that goes on and on"});
  EXPECT_EQ(table.Text(0), "A      LONG NAME  MESSAGE\ngröße  x          a message that goes on and on\n");
  EXPECT_EQ(table.Text(28), "A      LONG NAME  MESSAGE\ngröße  x          a message…\n");
  EXPECT_THAT(table.Text(1), HasSubstr("a messa…"));
}

TEST(TableTest, NumbersAndTimesReadWell) {
  EXPECT_EQ(DurationText(absl::Seconds(12)), "0:12");
  EXPECT_EQ(DurationText(absl::Seconds(11109)), "3:05:09");
  EXPECT_EQ(DurationText(absl::InfiniteDuration()), "-");
  EXPECT_EQ(TimeText(absl::FromUnixSeconds(1'700'000'000)), "2023-11-14 22:13:20");
  EXPECT_EQ(TimeText(absl::UnixEpoch()), "-");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(RateText(812.4), "812");
  EXPECT_EQ(RateText(3.44), "3.4");
  EXPECT_EQ(RateText(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(OneLine("a\nb\x1b[1m"), "a b\\x1b[1m");
  EXPECT_EQ(Shorten("äöü", 3), "äöü");
  EXPECT_EQ(Shorten("äöüß", 3), "äö…");
  EXPECT_EQ(Shorten("abc", 0), "");
}

TEST(ExitCodeTest, FollowsTheClassOfTheError) {
  const std::vector<std::pair<absl::Status, ExitCode>> cases = {
      {absl::OkStatus(), kExitOk},
      {absl::InternalError(""), kExitOther},
      {MakeError(absl::StatusCode::kInvalidArgument, "USAGE", ""), kExitUsage},
      {FieldError("a", "OUT_OF_RANGE", ""), kExitInvalidArgument},
      {absl::NotFoundError(""), kExitNotFound},
      {absl::FailedPreconditionError(""), kExitPrecondition},
      {absl::AbortedError(""), kExitPrecondition},
      {absl::AlreadyExistsError(""), kExitPrecondition},
      {absl::UnavailableError(""), kExitUnavailable},
      {absl::DeadlineExceededError(""), kExitUnavailable},
      {absl::ResourceExhaustedError(""), kExitResourceExhausted},
      {MakeError(absl::StatusCode::kUnavailable, "STORE_FULL", ""), kExitResourceExhausted},
      {absl::DataLossError(""), kExitDataLoss},
      {absl::UnauthenticatedError(""), kExitPermission},
      {MakeError(absl::StatusCode::kFailedPrecondition, "JOB_FAILED", ""), kExitJobFailed},
      {MakeError(absl::StatusCode::kCancelled, "INTERRUPTED", ""), kExitInterrupted},
  };
  for (const auto& [status, code] : cases) EXPECT_EQ(ExitCodeOf(status), code) << status;
}

Job RunningJob() {
  Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(R"(
    job_id: "j1" state: STATE_RUNNING
    spec { model_name: "digits" dataset: "digits" experts: 2 training { steps: 400 } router_training { steps: 200 } }
    create_time { seconds: 1700000000 }
    tasks { task_id: "a" kind: TASK_KIND_FEATURIZE state: STATE_SUCCEEDED }
    tasks { task_id: "b" kind: TASK_KIND_PARTITION index: 0 state: STATE_SUCCEEDED }
    tasks { task_id: "c" kind: TASK_KIND_PARTITION index: 1 state: STATE_LEASED }
    tasks { task_id: "e0" kind: TASK_KIND_TRAIN_EXPERT state: STATE_LEASED attempt: 1 island_id: "island-0"
      progress { step: 100 total_steps: 400 loss: 0.25 samples_per_second: 812 time_left { seconds: 24 } } }
    tasks { task_id: "e1" kind: TASK_KIND_TRAIN_EXPERT index: 1 state: STATE_READY }
    tasks { task_id: "r" kind: TASK_KIND_TRAIN_ROUTER state: STATE_SUCCEEDED progress { step: 200 total_steps: 200
      loss: 0.1 metrics { key: "accuracy" value: 0.9 } } }
    tasks { task_id: "p" kind: TASK_KIND_PUBLISH state: STATE_BLOCKED }
  )",
                                                            &job));
  return job;
}

TEST(WatchViewTest, BarsShowStepLossRateAndTimeLeft) {
  const auto lines = RenderBars(RunningJob(), 100, false);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], "job j1  running  featurize ✓ · partition 1/2 · publish");
  EXPECT_EQ(lines[1], "expert 0  ████████░░░░░░░░░░░░░░░░░░░░░░ 100/400  loss 0.2500  812 samples/s  0:24 left");
  EXPECT_EQ(lines[2], "expert 1  ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░   0/400  waiting");
  EXPECT_EQ(lines[3], "router    ██████████████████████████████ 200/200  loss 0.1000  accuracy 0.900  done");
}

TEST(WatchViewTest, EveryLineFitsTheTerminalHoweverNarrow) {
  Job job = RunningJob();
  job.set_message("a long message with a\nline break and more words than fit");
  for (int width = 5; width < 140; ++width) {
    for (const std::string& line : RenderBars(job, width, false)) {
      EXPECT_LE(DisplayWidth(line), width) << line;
      EXPECT_THAT(line, Not(HasSubstr("\n")));
    }
  }
}

TEST(WatchViewTest, ATerminalIsRedrawnInPlace) {
  std::ostringstream out;
  WatchView view(&out, true, 100, false);
  view.Show(RunningJob(), absl::UnixEpoch());
  EXPECT_THAT(out.str(), Not(HasSubstr("\x1b")));
  view.Show(RunningJob(), absl::UnixEpoch());
  EXPECT_THAT(out.str(), HasSubstr("\x1b[4A\x1b[J"));
}

TEST(WatchViewTest, APipeGetsALinePerChangeAndNoEscapes) {
  std::ostringstream out;
  WatchView view(&out, false, 0, true);
  Job job = RunningJob();
  absl::Time now = absl::UnixEpoch();
  view.Show(job, now);
  EXPECT_THAT(out.str(), HasSubstr("expert 0     leased    100/400  loss 0.2500"));
  EXPECT_THAT(out.str(), HasSubstr("job j1 running\n"));
  EXPECT_THAT(out.str(), Not(HasSubstr("publish")));
  const auto shown = [&] {
    out.str("");
    view.Show(job, now);
    return out.str();
  };
  EXPECT_EQ(shown(), "");
  auto* progress = job.mutable_tasks(3)->mutable_progress();
  progress->set_step(120);
  EXPECT_EQ(shown(), "") << "less than a tenth of the steps, and no time has passed";
  now += absl::Seconds(11);
  EXPECT_THAT(shown(), HasSubstr("120/400"));
  progress->set_step(170);
  EXPECT_THAT(shown(), HasSubstr("170/400"));
  job.mutable_tasks(3)->set_state(Task::STATE_SUCCEEDED);
  job.set_state(Job::STATE_SUCCEEDED);
  EXPECT_THAT(shown(), HasSubstr("expert 0     succeeded 400/400"));
}

Job RolledBackJob() {
  Job job = RunningJob();
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(R"(
    rollbacks { attempt: 1 from_step: 52 to_step: 40 skipped_first_step: 41 skipped_steps: 12 reason: "LOSS_EXPLODED"
      message: "training diverged" evidence_uri: "file:///b/52.json" }
    rollbacks { attempt: 2 from_step: 40 message: "the checkpoint of step 40 is damaged" }
  )",
                                                            job.mutable_tasks(3)));
  return job;
}

TEST(WatchViewTest, ARollbackIsToldOnce) {
  std::ostringstream out;
  WatchView view(&out, false, 0, false);
  const Job job = RolledBackJob();
  view.Show(job, absl::UnixEpoch());
  EXPECT_THAT(out.str(), HasSubstr("expert 0     rolled back to step 40, skipped 12 steps, evidence at "
                                   "file:///b/52.json: training diverged\n"));
  EXPECT_THAT(out.str(), HasSubstr("expert 0     rolled back to its start: the checkpoint of step 40 is damaged\n"));
  out.str("");
  view.Show(job, absl::UnixEpoch());
  EXPECT_EQ(out.str(), "");
  const auto lines = RenderBars(job, 120, false);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[4], HasSubstr("expert 0: rolled back to step 40, skipped 12 steps"));
}

TEST(WatchViewTest, OfManyRollbacksBarsShowTheNewest) {
  Job job = RunningJob();
  for (int i = 0; i < 4; ++i) {
    for (const int task : {3, 4}) {
      auto* const rollback = job.mutable_tasks(task)->add_rollbacks();
      rollback->set_to_step(10 * (i + 1));
      rollback->mutable_time()->set_seconds(1700000000 + 10 * i + task);
    }
  }
  const auto lines = RenderBars(job, 120, false);
  ASSERT_EQ(lines.size(), 10u);
  EXPECT_EQ(lines[4], "earlier rollbacks: 3 (atoll jobs get j1)");
  EXPECT_THAT(lines[5], HasSubstr("expert 1: rolled back to step 20"));
  EXPECT_THAT(lines[6], HasSubstr("expert 0: rolled back to step 30"));
  EXPECT_THAT(lines[9], HasSubstr("expert 1: rolled back to step 40"));
}

TEST(JobTextTest, RollbacksAndTheLastErrorsOfATaskThatFailedAreTold) {
  Job job = RolledBackJob();
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(R"(
    last_errors { attempt: 3 island_id: "reef" code: "INTERNAL" message: "out of\nluck" time { seconds: 1700000000 } }
    last_errors { attempt: 2 island_id: "atoll" code: "EXPIRED" message: "gone" time { seconds: 1700000000 } }
  )",
                                                            job.mutable_tasks(3)));
  const std::string text = DescribeJob(job, 80);
  EXPECT_THAT(text, HasSubstr("\nexpert 0, attempt 1: rolled back to step 40, skipped 12 steps, evidence at "
                              "file:///b/52.json: training diverged\n"));
  EXPECT_THAT(text,
              HasSubstr("\nexpert 0, attempt 3 on island reef, 2023-11-14 22:13:20 UTC: INTERNAL: out of luck\n"));
  EXPECT_THAT(text, HasSubstr("attempt 2 on island atoll, 2023-11-14 22:13:20 UTC: EXPIRED: gone\n"));
}

TEST(JobTextTest, WhatAServerNamesMovesNoCursor) {
  Job job = RunningJob();
  job.set_job_id("j\x1b[2J");
  EXPECT_THAT(DescribeJob(job, 0), HasSubstr("job      j\\x1b[2J\n"));
  EXPECT_THAT(RenderBars(job, 100, false)[0], HasSubstr("job j\\x1b[2J  running"));
  std::ostringstream out;
  WatchView view(&out, false, 0, false);
  view.Show(job, absl::UnixEpoch());
  EXPECT_THAT(out.str(), HasSubstr("job j\\x1b[2J running\n"));
}

TEST(JobTextTest, AJobIsDescribedWithItsTasks) {
  const std::string text = DescribeJob(RunningJob(), 0);
  EXPECT_THAT(text, HasSubstr("state    running"));
  EXPECT_THAT(text, HasSubstr("created  2023-11-14 22:13:20 UTC"));
  EXPECT_THAT(text, Not(HasSubstr("owner")));
  Job owned = RunningJob();
  owned.set_owner("ann\x1b");
  EXPECT_THAT(DescribeJob(owned, 0), HasSubstr("\nowner    ann\\x1b\ncreated "));
  EXPECT_THAT(text, HasSubstr("expert 0     leased     1        island-0  100/400  -          0.2500"));
  for (int state = 0; state <= 5; ++state) {
    EXPECT_EQ(StateName(static_cast<Job::State>(state)) == "unknown", state == 0);
  }
  for (int state = 0; state <= 6; ++state) {
    EXPECT_EQ(StateName(static_cast<Task::State>(state)) == "unknown", state == 0);
  }
}

}  // namespace
}  // namespace atl::client
