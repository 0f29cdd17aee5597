#include "common/formats/step_trace.h"

#include <functional>
#include <string>

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::storage {
namespace {

using nlohmann::json;
using schedule::ActionKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Duration Ms(int64_t milliseconds) {
  return absl::Milliseconds(milliseconds);
}

StepTrace SomeTrace() {
  return {.task_id = "j/train_expert-0",
          .attempt = 3,
          .step = 40,
          .rank = 1,
          .ranks = 2,
          .pipeline_ranks = 2,
          .generator = "1f1b",
          .boot_id = "b",
          .start_monotonic = absl::Seconds(1000) + absl::Microseconds(7),
          .start_time = absl::FromUnixMicros(1'700'000'000'123'456),
          .step_duration = Ms(60),
          .actions = {{{ActionKind::kSelfConditioning, 1, 0}, Ms(1), Ms(2), Ms(4), Ms(5)},
                      {{ActionKind::kForward, 1, 0}, Ms(5), Ms(6), Ms(20), Ms(21)},
                      {{ActionKind::kFrozen, 0, 4}, Ms(22), Ms(22), Ms(25), Ms(25)},
                      {{ActionKind::kBackward, 1, 0}, Ms(30), Ms(31), Ms(50), Ms(52)}}};
}

TEST(StepTraceTest, JsonReadsBackEqual) {
  const auto parsed = ParseStepTrace(ToJson(SomeTrace()), "trace.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, SomeTrace());
}

TEST(StepTraceTest, ATornFileIsNamedWhereverItWasCut) {
  const std::string whole = ToJson(SomeTrace());
  for (size_t size = 0; size + 2 < whole.size(); ++size) {
    const auto parsed = ParseStepTrace(whole.substr(0, size), "torn.json");
    ASSERT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << size;
    ASSERT_THAT(std::string(parsed.status().message()), HasSubstr("torn.json")) << size;
  }
}

TEST(StepTraceTest, MalformedTracesAreRefusedByField) {
  struct Case {
    std::function<void(json&)> spoil;
    const char* message;
  };
  const Case cases[] = {
      {[](json& t) { t.erase("step_us"); }, "step_us"},
      {[](json& t) { t["rank"] = 2; }, "rank: expected one below 2, found 2"},
      {[](json& t) { t["ranks"] = 0; }, "ranks"},
      {[](json& t) { t["pipeline_ranks"] = 0; }, "pipeline_ranks"},
      {[](json& t) { t["actions"][2]["kind"] = "X"; }, "actions[2].kind"},
      {[](json& t) { t["actions"][0]["stage"] = -1; }, "actions[0].stage"},
      {[](json& t) { t["actions"][3]["ready_us"] = 24'999; }, "actions[3]: expected times that do not run backwards"},
      {[](json& t) { t["actions"][1]["end_us"] = 21'001; }, "actions[1]: expected times that do not run backwards"},
      {[](json& t) { t["actions"] = "none"; }, "actions"},
  };
  for (const Case& c : cases) {
    json object = json::parse(ToJson(SomeTrace()));
    c.spoil(object);
    const auto parsed = ParseStepTrace(object.dump(), "trace.json");
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << c.message;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.message));
  }
  json other = json::parse(ToJson(SomeTrace()));
  other["format"] = 2;
  EXPECT_EQ(ErrorReason(ParseStepTrace(other.dump(), "trace.json").status()), "FORMAT_UNSUPPORTED");
}

TEST(StepTraceTest, NamesReadBack) {
  const std::string uri = StepTraceUri("file:///s/jobs/j/train_expert-0/2-31", 40, 7);
  EXPECT_EQ(uri, "file:///s/jobs/j/train_expert-0/2-31/trace/00000040-rank-7.json");
  EXPECT_EQ(StepTraceUri("file:///s/jobs/j/train_expert-0/2-31/", 40, 7), uri);
  EXPECT_EQ(ParseStepTraceName("2-31/trace/00000040-rank-7.json"), (StepTraceName{2, 31, 40, 7}));
  for (const char* other :
       {"", "2-31/00000040-x/manifest.json", "2-31/trace/00000040-rank-7.json.part", "2-31/trace/00000040-rank-.json",
        "2-31/trace/40-rank--7.json", "31/trace/4-rank-7.json", "2-31/trace/99999999999999999999-rank-7.json"}) {
    EXPECT_FALSE(ParseStepTraceName(other).has_value()) << other;
  }
}

TEST(StepTraceTest, RanksOfOneBootFollowItsMonotonicClock) {
  const absl::Time wall = absl::FromUnixSeconds(1'700'000'000);
  const auto at = [](const char* boot, absl::Duration monotonic, absl::Time time) {
    StepTrace trace;
    trace.boot_id = boot;
    trace.start_monotonic = monotonic;
    trace.start_time = time;
    return trace;
  };
  // The wall clock of rank 1 was set back by a second between the two readings: it does not count.
  EXPECT_THAT(AlignedStarts({at("a", absl::Seconds(10), wall), at("a", absl::Seconds(10) + Ms(3), wall - Ms(1000))}),
              ElementsAre(Ms(0), Ms(3)));
  // Another machine has another monotonic clock; its first rank is laid by wall time, the next one beside it.
  EXPECT_THAT(AlignedStarts({at("a", absl::Seconds(10), wall), at("b", absl::Seconds(99), wall - Ms(2)),
                             at("b", absl::Seconds(99) + Ms(1), wall + Ms(500))}),
              ElementsAre(Ms(2), Ms(0), Ms(1)));
  // Unknown boots: wall time alone.
  EXPECT_THAT(AlignedStarts({at("", absl::Seconds(10), wall), at("", absl::Seconds(50), wall + Ms(4))}),
              ElementsAre(Ms(0), Ms(4)));
  EXPECT_TRUE(AlignedStarts({}).empty());
}

}  // namespace
}  // namespace atl::storage
