// `atoll jobs trace`, against a blob store that holds what ranks leave.
#include <algorithm>

#include "client/commands/command_line_testing.h"
#include "client/step_traces.h"
#include "common/base/files.h"
#include "common/formats/step_trace.h"
#include "common/storage/blob_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using ::testing::HasSubstr;

// Two ranks of one boot; rank 1 began 2 ms later.
std::vector<storage::StepTrace> TracesOf(int64_t step) {
  std::vector<storage::StepTrace> traces;
  const auto ms = [](int64_t n) { return absl::Milliseconds(n); };
  for (const int32_t rank : {0, 1}) {
    storage::StepTrace trace{.task_id = "j1/train_expert-0", .attempt = 2, .step = step, .rank = rank, .ranks = 2};
    trace.pipeline_ranks = 2;
    trace.generator = "1f1b";
    trace.boot_id = "boot";
    trace.start_monotonic = absl::Seconds(5) + ms(2 * rank);
    trace.start_time = absl::FromUnixSeconds(1'700'000'000);
    trace.step_duration = ms(100 - 2 * rank);
    trace.actions = {{{schedule::ActionKind::kForward, rank, 0}, ms(18 * rank), ms(18 * rank), ms(38), ms(38)},
                     {{schedule::ActionKind::kBackward, rank, 0}, ms(58), ms(58), ms(88), ms(88)}};
    traces.push_back(trace);
  }
  return traces;
}

TEST(TraceTextTest, WhatAFileNamesMovesNoCursor) {
  TracedStep step;
  step.ranks = TracesOf(10);
  step.starts = storage::AlignedStarts(step.ranks);
  step.ranks[0].generator = "1f1b\x1b[2J";
  EXPECT_THAT(DescribeTrace(step, 0), HasSubstr("schedule 1f1b\\x1b[2J over 2 ranks\n"));
}

TEST_F(CommandLineTest, TraceShowsTheLatestWholeStepOfTheLatestAttempt) {
  const auto store = *storage::BlobStore::Open("file://" + folder_ + "/blobs");
  const auto write = [&](const char* attempt, const storage::StepTrace& trace) {
    const std::string prefix = store->UriOf(std::string("jobs/j1/train_expert-0/") + attempt);
    ASSERT_TRUE(store->Write(storage::StepTraceUri(prefix, trace.step, trace.rank), storage::ToJson(trace)).ok());
  };
  Outcome outcome = Run({"jobs", "trace", "j1"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("expected traces of j1/train_expert-0, found none"));
  EXPECT_THAT(outcome.err, HasSubstr("[TRACE_UNKNOWN]"));

  for (const auto& trace : TracesOf(30)) write("1-1", trace);
  for (const auto& trace : TracesOf(10)) write("1-2", trace);
  write("1-2", TracesOf(20)[0]);  // rank 1 has not written its own yet
  outcome = Run({"jobs", "trace", "j1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step     10, 100.00 ms"));
  EXPECT_THAT(outcome.out, HasSubstr("1f1b over 2 ranks"));
  EXPECT_THAT(outcome.out, HasSubstr("0     2        68.00 ms  68.0 %"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 0: FFFF"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 1: ..."));
  EXPECT_THAT(outcome.out, HasSubstr("BB==="));

  outcome = Run({"jobs", "trace", "j1", "--task", "expert 0", "--step", "30", "--output", "json"});
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json.at("ranks").size(), 2u);
  EXPECT_EQ(json.at("ranks")[1].at("aligned_start_us"), 2000);
  EXPECT_EQ(json.at("ranks")[1].at("step"), 30);

  outcome = Run({"jobs", "trace", "j1", "--format", "svg"});
  EXPECT_THAT(outcome.out, HasSubstr("<svg "));
  EXPECT_THAT(outcome.out, HasSubstr("j1/train_expert-0, step 10"));
  EXPECT_THAT(outcome.out, HasSubstr("norm and optimizer 11.0 %"));
  const std::string path = folder_ + "/trace.json";
  outcome = Run({"jobs", "trace", "j1", "--format", "chrome", "--out", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  const auto chrome = nlohmann::json::parse(*ReadFile(path));
  const auto events = [&](const char* phase) {
    const auto& all = chrome.at("traceEvents");
    return std::count_if(all.begin(), all.end(), [&](const auto& event) { return event.at("ph") == phase; });
  };
  EXPECT_EQ(events("X"), 6) << "two actions and what follows them, twice";
  EXPECT_EQ(events("s"), 2) << "rank 1 waited for its input, rank 0 for its gradient";

  outcome = Run({"jobs", "trace", "j1", "--step", "11"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("expected a step that left traces (10, 20, 30), found 11"));
  outcome = Run({"jobs", "trace", "j1", "--step", "20"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr("step 20: expected the traces of 2 ranks, found only rank 0 [TRACE_INCOMPLETE]"));
  outcome = Run({"jobs", "trace", "j1", "--task", "train_expert-7"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("expected a task that trains (j1/train_expert-0), found 'train_expert-7'"));

  const std::string torn = storage::StepTraceUri(store->UriOf("jobs/j1/train_expert-0/1-2"), 10, 1);
  ASSERT_TRUE(store->Write(torn, storage::ToJson(TracesOf(10)[1]).substr(0, 200)).ok());
  outcome = Run({"jobs", "trace", "j1"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr(torn + ": expected a JSON object"));
}

// One rank, whose every millisecond holds this much of F and then of B; a column of the text is one millisecond.
storage::StepTrace ShortActions(absl::Duration of_each) {
  constexpr int kColumns = 92;
  storage::StepTrace trace{.task_id = "j1/train_expert-0", .attempt = 1, .step = 3};
  trace.step_duration = absl::Milliseconds(kColumns);
  for (int column = 0; column < kColumns; ++column) {
    const absl::Duration start = absl::Milliseconds(column);
    const absl::Duration middle = start + of_each;
    const absl::Duration end = middle + of_each;
    trace.actions.push_back({{schedule::ActionKind::kForward, 0, 0}, start, start, middle, middle});
    trace.actions.push_back({{schedule::ActionKind::kBackward, 0, 0}, middle, middle, end, end});
  }
  return trace;
}

TEST_F(CommandLineTest, TraceShowsARankAsIdleOnlyWhereIdleTimeIsTheMost) {
  const auto store = *storage::BlobStore::Open("file://" + folder_ + "/blobs");
  const std::string uri = storage::StepTraceUri(store->UriOf("jobs/j1/train_expert-0/1-1"), 3, 0);
  ASSERT_TRUE(store->Write(uri, storage::ToJson(ShortActions(absl::Microseconds(400)))).ok());
  EXPECT_THAT(Run({"jobs", "trace", "j1"}).out, HasSubstr("rank 0: " + std::string(92, 'F') + "\n"));
  ASSERT_TRUE(store->Write(uri, storage::ToJson(ShortActions(absl::Microseconds(300)))).ok());
  EXPECT_THAT(Run({"jobs", "trace", "j1"}).out, HasSubstr("rank 0: " + std::string(91, '.') + "=\n"));
  EXPECT_THAT(Run({"jobs", "trace", "j1", "--out", folder_ + "/trace.txt"}).err, HasSubstr("step 3, 1 rank\n"));
}

TEST_F(CommandLineTest, TraceOfASelfConditionedStepShowsItsForwardsAndTheFeedback) {
  const auto store = *storage::BlobStore::Open("file://" + folder_ + "/blobs");
  for (storage::StepTrace trace : TracesOf(10)) {
    // C of stage 1 ends at 16; what it makes is what stage 0 waits for until 18.
    const int32_t rank = trace.rank;
    const auto ms = [](int64_t n) { return absl::Milliseconds(n); };
    const storage::TracedAction own{{schedule::ActionKind::kSelfConditioning, rank, 0},
                                    ms(6 * rank),
                                    ms(6 * rank),
                                    ms(6 + 8 * rank),
                                    ms(6 + 8 * rank)};
    trace.actions.insert(trace.actions.begin(), own);
    trace.actions[1].ready = trace.actions[1].start = ms(18);
    const std::string prefix = store->UriOf("jobs/j1/train_expert-0/1-2");
    ASSERT_TRUE(store->Write(storage::StepTraceUri(prefix, trace.step, trace.rank), storage::ToJson(trace)).ok());
  }
  const Outcome text = Run({"jobs", "trace", "j1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("rank 0: CCC"));
  EXPECT_THAT(text.out, HasSubstr("C self-conditioning"));
  EXPECT_THAT(Run({"jobs", "trace", "j1", "--format", "svg"}).out, HasSubstr("C self-conditioning"));
  const auto chrome = nlohmann::json::parse(Run({"jobs", "trace", "j1", "--format", "chrome"}).out);
  std::vector<std::pair<int, double>> sent;
  for (const auto& event : chrome.at("traceEvents")) {
    if (event.at("ph") == "s") sent.emplace_back(event.at("tid"), event.at("ts"));
  }
  // Rank 0's F waited for rank 1's C; rank 1's C for rank 0's and its F for rank 0's F; rank 0's B for rank 1's.
  EXPECT_EQ(sent.size(), 4u);
  EXPECT_EQ(std::count(sent.begin(), sent.end(), std::pair(1, 16000.0)), 1) << "the feedback";
}

TEST_F(CommandLineTest, TraceOfAJobWithFrozenWorkShowsAStepThatHasSome) {
  const auto store = *storage::BlobStore::Open("file://" + folder_ + "/blobs");
  const auto leave = [&](const char* attempt, int64_t step) {
    for (const auto& trace : TracesOf(step)) {
      const std::string prefix = store->UriOf(std::string("jobs/j1/train_expert-0/") + attempt);
      ASSERT_TRUE(store->Write(storage::StepTraceUri(prefix, step, trace.rank), storage::ToJson(trace)).ok());
    }
  };
  Job job = FakeJobs::JobAt(1);
  job.mutable_spec()->mutable_training()->set_steps(40);
  const auto latest = [&] { return (*ReadTracedStep(store.get(), job, "", std::nullopt)).ranks.front().step; };
  leave("1-1", 20);
  leave("1-2", 40);
  EXPECT_EQ(latest(), 40) << "nothing is frozen";
  job.mutable_spec()->add_frozen()->set_name("encoder");
  EXPECT_EQ(latest(), 40) << "the attempt left no other";
  leave("1-2", 10);
  EXPECT_EQ(latest(), 10);
  leave("1-2", 30);
  EXPECT_EQ(latest(), 30);
  EXPECT_EQ((*ReadTracedStep(store.get(), job, "", 40)).ranks.front().step, 40) << "asked for";
}

}  // namespace
}  // namespace atl::client
