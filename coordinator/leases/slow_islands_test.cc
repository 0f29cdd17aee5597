#include "coordinator/leases/slow_islands.h"

#include "gtest/gtest.h"

namespace atl::leases {
namespace {

constexpr absl::Duration kNow = absl::Seconds(1000);

StepReport Report(const std::string& island, double seconds, const std::string& group = "job train_expert",
                  absl::Duration slower_since = absl::InfiniteDuration()) {
  return {island, group, absl::Seconds(seconds), slower_since};
}

TEST(SlowIslandsTest, EachIsComparedWithTheMedianOfTheOthers) {
  struct Case {
    const char* name;
    std::vector<StepReport> reports;
    std::vector<double> slowdowns;
  };
  const Case cases[] = {
      {"nobody", {}, {}},
      {"alone", {Report("a", 1)}, {0}},
      {"two", {Report("a", 1), Report("b", 3)}, {1.0 / 3, 3}},
      {"one of three", {Report("a", 1), Report("b", 2), Report("c", 9)}, {1 / 5.5, 2 / 5.0, 9 / 1.5}},
      {"most are slow", {Report("a", 4), Report("b", 1), Report("c", 4), Report("d", 4)}, {1, 0.25, 1, 1}},
      {"other work",
       {Report("a", 1), Report("b", 9, "job train_router"), Report("c", 9, "other train_expert")},
       {0, 0, 0}},
      {"not measured yet", {Report("a", 1), Report("b", 0), Report("c", 1)}, {1, 0, 1}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const auto judgements = JudgeStepTimes(test.reports, kNow);
    ASSERT_EQ(judgements.size(), test.slowdowns.size());
    for (size_t i = 0; i < judgements.size(); ++i) EXPECT_DOUBLE_EQ(judgements[i].slowdown, test.slowdowns[i]) << i;
  }
}

TEST(SlowIslandsTest, SlowIsWhoIsSlowerForAMinute) {
  struct Case {
    const char* name;
    double seconds;
    absl::Duration slower_since;
    absl::Duration since;
    bool slow;
  };
  const absl::Duration never = absl::InfiniteDuration();
  const Case cases[] = {
      {"as fast", 1, never, never, false},
      {"exactly the ratio", 2, never, never, false},
      {"slower since now", 2.1, never, kNow, false},
      {"slower for a moment less", 2.1, kNow - absl::Seconds(59), kNow - absl::Seconds(59), false},
      {"slower for a minute", 2.1, kNow - absl::Minutes(1), kNow - absl::Minutes(1), true},
      {"fast again", 1.9, kNow - absl::Minutes(5), never, false},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    const auto found =
        JudgeStepTimes({Report("a", 1), Report("b", test.seconds, "job train_expert", test.slower_since)}, kNow);
    EXPECT_EQ(found[1].slower_since, test.since);
    EXPECT_EQ(found[1].slow, test.slow);
    EXPECT_FALSE(found[0].slow);
  }
}

}  // namespace
}  // namespace atl::leases
