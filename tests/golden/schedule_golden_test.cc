// Every generator's schedules as text, for several shapes, in tests/golden/schedules/<generator>.txt: a heading
// "# ranks <p>, micro-batches <m>" before each. ATOLL_UPDATE_GOLDEN=1 writes the files anew.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "common/schedule/accumulation.h"
#include "common/schedule/adaptive/adaptive.h"
#include "common/schedule/adaptive/testing.h"
#include "common/schedule/generators.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {
namespace {

struct Shape {
  int32_t ranks;
  int32_t micro_batches;
};

constexpr Shape kShapes[] = {{1, 4}, {2, 1}, {2, 3}, {2, 4}, {3, 3}, {4, 2}, {4, 7}, {4, 8}, {8, 16}};

std::string TextOf(std::string_view generator) {
  std::ostringstream text;
  for (const auto& [ranks, micro_batches] : kShapes) {
    text << "# ranks " << ranks << ", micro-batches " << micro_batches << "\n"
         << ToText(*Generate(generator, ranks, micro_batches));
  }
  return text.str();
}

class ScheduleGolden : public testing::TestWithParam<std::string_view> {};

TEST_P(ScheduleGolden, TextEqualsTheGoldenFile) {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "ATOLL_SOURCE_DIR is not set: run through ctest";
  const std::string path = std::string(source) + "/tests/golden/schedules/" + std::string(GetParam()) + ".txt";
  const std::string text = TextOf(GetParam());
  if (std::getenv("ATOLL_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    GTEST_SKIP() << "wrote " << path;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file.good()) << path << " is missing: every generator has a golden file";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str());
}

INSTANTIATE_TEST_SUITE_P(EveryGenerator, ScheduleGolden, testing::ValuesIn(GeneratorNames()), [](const auto& info) {
  std::string name = "g" + std::string(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// The rows of the public search (tests/peers/published_schedules.py) up to 10 ranks; tests/bench/schedules.sh checks
// them all.
TEST(PublishedSchedules, NoneIsBetterThanOurs) {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "ATOLL_SOURCE_DIR is not set: run through ctest";
  const std::vector<PublishedRow> rows = PublishedRows(source);
  ASSERT_EQ(rows.size(), 165u);
  for (const PublishedRow& row : rows) {
    if (row.ranks > 10) continue;
    SCOPED_TRACE(testing::Message() << row.ranks << " ranks, " << row.limit << " halves");
    const SimulationCosts costs = EqualStages(row.ranks, 1, 1, 1);
    const std::vector<double> limits(row.ranks, row.limit);
    const auto whole = FindAdaptive(2 * row.ranks, costs, limits);
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_LE(Simulate(*whole, costs)->makespan_seconds - 12 * row.ranks, row.step);
    const auto own = FindAdaptive(2 * row.ranks, costs, limits, {.goal = AdaptiveGoal::kRankIdle});
    ASSERT_TRUE(own.ok()) << own.status();
    EXPECT_LE(OwnSpanIdleSeconds(*Simulate(*own, costs)), row.own_span);
  }
}

// Compute-only files as torch.distributed.pipelining 2.11 writes them, idle cells and all (tests/peers).
class PyTorchSchedule : public testing::TestWithParam<std::string_view> {};

TEST_P(PyTorchSchedule, IsReadValidatedAndSimulated) {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "ATOLL_SOURCE_DIR is not set: run through ctest";
  std::ifstream file(std::string(source) + "/tests/golden/schedules/pytorch/" + std::string(GetParam()) + ".csv");
  ASSERT_TRUE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  const auto schedule = ParseText(text.str());
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  const absl::Status valid = Validate(*schedule);
  EXPECT_TRUE(valid.ok()) << valid;
  // Breadth first runs the backwards last to first.
  EXPECT_EQ(AccumulatesInOrder(*schedule).ok(), GetParam() != "looped_bfs") << AccumulatesInOrder(*schedule);
  SimulationCosts costs;
  costs.stages.resize(schedule->stages);
  const auto simulation = Simulate(*schedule, costs);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_LT(simulation->bubble, 0.4);
}

// Every I with the W of its micro-batch right after it.
Schedule Split(Schedule schedule) {
  for (auto& rank : schedule.ranks) {
    std::vector<Action> split;
    for (const Action& action : rank) {
      if (action.kind != ActionKind::kBackward) {
        split.push_back(action);
        continue;
      }
      split.push_back({ActionKind::kInputGradient, action.stage, action.micro_batch});
      split.push_back({ActionKind::kWeightGradient, action.stage, action.micro_batch});
    }
    rank = std::move(split);
  }
  return schedule;
}

TEST(PyTorchSchedules, InterleavedAndZbvAreTheSameHere) {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "ATOLL_SOURCE_DIR is not set: run through ctest";
  const auto read = [source](const std::string& name) {
    std::ifstream file(std::string(source) + "/tests/golden/schedules/pytorch/" + name + ".csv");
    std::stringstream text;
    text << file.rdbuf();
    return *ParseText(text.str());
  };
  EXPECT_EQ(ToText(read("interleaved_1f1b")), ToText(*GenerateInterleaved1F1B(2, 4)));
  EXPECT_EQ(ToText(read("interleaved_1f1b_4x8")), ToText(*GenerateInterleaved1F1B(4, 8)));
  EXPECT_EQ(ToText(read("zbv_zero_bubble")), ToText(Split(*GenerateZbv(4, 8))));
  EXPECT_EQ(ToText(read("zbv_zero_bubble_3x7")), ToText(Split(*GenerateZbv(3, 7))));
}

INSTANTIATE_TEST_SUITE_P(EveryFile, PyTorchSchedule,
                         testing::Values("interleaved_1f1b", "interleaved_1f1b_4x8", "interleaved_zero_bubble",
                                         "interleaved_zero_bubble_4x8", "looped_bfs", "zbv_zero_bubble",
                                         "zbv_zero_bubble_3x7"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace atl::schedule
