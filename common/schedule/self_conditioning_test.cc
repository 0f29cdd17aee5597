#include "common/schedule/self_conditioning.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"

namespace atl::schedule {
namespace {

using ::testing::HasSubstr;

constexpr double kForward = 1.0;

SimulationCosts EqualCosts(int32_t stages, double transfer_seconds = 0) {
  SimulationCosts costs;
  costs.stages.assign(stages, {kForward, 1.25, 0.5, 1, 0.75});
  costs.transfer_seconds = transfer_seconds;
  return costs;
}

// All C's before anything else, in the order that the merge found.
Schedule AllFirst(Schedule merged) {
  for (auto& rank : merged.ranks) {
    std::stable_partition(rank.begin(), rank.end(),
                          [](const Action& action) { return action.kind == ActionKind::kSelfConditioning; });
  }
  return merged;
}

// (generator, ranks, micro-batches)
class EveryMerge : public testing::TestWithParam<std::tuple<std::string_view, int32_t, int32_t>> {};

TEST_P(EveryMerge, IsValidChangesNothingElseAndIsNoLongerThanAllFirst) {
  const auto& [name, ranks, micro_batches] = GetParam();
  const Schedule schedule = *Generate(name, ranks, micro_batches);
  for (const double transfer : {0.0, 0.3, 5.0}) {
    for (const double unequal : {0.0, 0.3}) {
      SimulationCosts costs = EqualCosts(schedule.stages, transfer);
      for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
        costs.stages[stage].forward_seconds += unequal * static_cast<double>(stage % 3);
      }
      const Schedule merged = AddSelfConditioning(schedule, costs);
      const absl::Status valid = Validate(merged);
      EXPECT_TRUE(valid.ok()) << valid << ToText(merged);
      const absl::Status same = CheckSelfConditioned(merged, schedule);
      EXPECT_TRUE(same.ok()) << same << ToText(merged);
      EXPECT_EQ(ParseText(ToText(merged)).value(), merged);
      const double seconds = Simulate(merged, costs)->makespan_seconds;
      EXPECT_LE(seconds, Simulate(AllFirst(merged), costs)->makespan_seconds + 1e-9) << transfer << "\n"
                                                                                     << ToText(merged);
      EXPECT_GE(seconds, Simulate(schedule, costs)->makespan_seconds + kForward - 1e-9) << ToText(merged);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ManyShapes, EveryMerge,
                         testing::Combine(testing::ValuesIn(GeneratorNames()), testing::Values(1, 2, 3, 4),
                                          testing::Values(1, 2, 3, 5, 8)));

TEST(AddSelfConditioning, TakesNoMoreThanItsForwardsWithAsManyMicroBatchesAsStages) {
  for (const std::string_view name : GeneratorNames()) {
    for (const int32_t ranks : {1, 2, 3, 4, 8}) {
      const int32_t stages = ranks * FindGenerator(name)->stages_per_rank;
      for (const int32_t micro_batches : {stages, stages + 1, 2 * stages + 3}) {
        const Schedule schedule = *Generate(name, ranks, micro_batches);
        const SimulationCosts costs = EqualCosts(stages);
        const Simulation plain = *Simulate(schedule, costs);
        const Simulation merged = *Simulate(AddSelfConditioning(schedule, costs), costs);
        const double of_rank = micro_batches * (stages / ranks) * kForward;
        EXPECT_NEAR(merged.makespan_seconds, plain.makespan_seconds + of_rank, 1e-9)
            << name << " " << ranks << " x " << micro_batches;
        EXPECT_EQ(merged.peak_activation_bytes, plain.peak_activation_bytes) << "C keeps nothing";
      }
    }
  }
}

TEST(AddSelfConditioning, FewerMicroBatchesWaitForTheFeedback) {
  const Schedule schedule = *Generate1F1B(4, 2);
  const SimulationCosts costs = EqualCosts(4);
  const Schedule merged = AddSelfConditioning(schedule, costs);
  EXPECT_EQ(ToText(merged),
            "0C0,0C1,0F0,0F1,0B0,0B1\n1C0,1C1,1F0,1F1,1B0,1B1\n2C0,2C1,2F0,2F1,2B0,2B1\n3C0,3C1,3F0,3B0,3F1,3B1\n");
  EXPECT_NEAR(Simulate(merged, costs)->makespan_seconds, Simulate(schedule, costs)->makespan_seconds + 4 * kForward,
              1e-9);
}

TEST(AddSelfConditioning, LatestStagesGoFirstSoThatFeedbackComesEarly) {
  EXPECT_EQ(ToText(AddSelfConditioning(*GenerateInterleaved1F1B(2, 2), EqualCosts(4))),
            "0C0,0C1,2C0,2C1,0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1C0,1C1,3C0,3C1,1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
}

TEST(AddSelfConditioning, FrozenPiecesAndReductionsStayBetweenTheSameActions) {
  const Schedule schedule = *ParseText("0F0,0F1,E0,0B0,0B1,R0\nE1,1F0,1B0,1F1,1B1,R1,E2\n");
  SimulationCosts costs = EqualCosts(2);
  costs.frozen = {{.seconds = 1}, {.seconds = 1, .reads = {}}, {.seconds = 1, .reads = {0, 1}, .transfer_seconds = 2}};
  // Rank 1 runs its piece while it waits for the first C.
  EXPECT_EQ(ToText(AddSelfConditioning(schedule, costs)),
            "0C0,0C1,0F0,0F1,E0,0B0,0B1,R0\nE1,1C0,1C1,1F0,1B0,1F1,1B1,R1,E2\n");
}

struct BadPair {
  const char* self_conditioned;
  const char* message;
};

TEST(CheckSelfConditioned, RefusesWhatIsNotTheScheduleAndItsCs) {
  const Schedule schedule = *ParseText("0F0,0B0,E0\n1F0,1B0\n");
  const BadPair cases[] = {
      {"0F0,0B0,E0\n1F0,1B0\n", "expected a C of every stage and micro-batch, found none"},
      {"0C0,0F0,0B0,E0\n", "expected the schedule's 2 ranks, found 1"},
      {"0C0,0F0,0B0,E0\n1C0,2C0,2F0,1F0,1B0,2B0\n", "expected the schedule's 2 stages, found 3"},
      {"0C0,0F0,0B0,E0\n1C0,1F1,1F0,1B0\n", "expected the schedule's 1 micro-batches, found 2"},
      {"0C0,0F0,0B0\n1C0,1F0,1B0\n", "expected the schedule's 1 frozen pieces, found 0"},
      {"0C0,0F0,E0,0B0\n1C0,1F0,1B0\n", "rank 0, position 2, E0: expected 0B0, as in the schedule, or a C"},
      {"0C0,0F0,0B0,E0\n1C0,1F0,1B0,1B0\n", "rank 1, position 3, 1B0: expected the end, as in the schedule, or a C"},
      {"0C0,0F0,0B0,E0\n1C0,1F0\n", "rank 1: expected 1B0, as in the schedule, found the end"},
  };
  for (const BadPair& bad : cases) {
    const absl::Status status = CheckSelfConditioned(*ParseText(bad.self_conditioned), schedule);
    EXPECT_EQ(ErrorReason(status), "SCHEDULE_MISMATCH") << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
  const Schedule merged = *ParseText("0C0,0F0,0B0,E0\n1C0,1F0,1B0\n");
  EXPECT_TRUE(CheckSelfConditioned(merged, schedule).ok());
  EXPECT_THAT(std::string(CheckSelfConditioned(merged, merged).message()),
              HasSubstr("rank 0, position 0, 0C0: expected no C in the schedule beside it"));
}

}  // namespace
}  // namespace atl::schedule
