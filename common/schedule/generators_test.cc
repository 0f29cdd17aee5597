#include "common/schedule/generators.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/accumulation.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Generators, GPipeRunsAllForwardsThenAllBackwardsInMicroBatchOrder) {
  EXPECT_EQ(ToText(*GenerateGPipe(2, 3)), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST(Generators, OneFOneBWarmsUpByDistanceFromTheLastStage) {
  EXPECT_EQ(ToText(*Generate1F1B(3, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(Generators, OneFOneBWithFewerMicroBatchesThanStagesIsGPipe) {
  EXPECT_EQ(*Generate1F1B(5, 1), *GenerateGPipe(5, 1));
  EXPECT_EQ(ToText(*Generate1F1B(3, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
}

TEST(Generators, WeightGradientsOfZbH1FollowByTheRanksNumber) {
  EXPECT_EQ(ToText(*GenerateZbH1(2, 3)), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
}

TEST(Generators, InterleavedWithMicroBatchesThatRanksDoNotDivideLeavesTheRestOut) {
  EXPECT_EQ(ToText(*GenerateInterleaved1F1B(2, 1)), "0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n");
}

TEST(Generators, KnowTheirStagesPerRank) {
  for (const GeneratorInfo& info : Generators()) {
    const Schedule schedule = *Generate(info.name, 4, 9);
    EXPECT_EQ(schedule.rank_count(), 4) << info.name;
    EXPECT_EQ(schedule.stages, 4 * info.stages_per_rank) << info.name;
    EXPECT_EQ(FindGenerator(info.name)->stages_per_rank, info.stages_per_rank);
  }
}

// (generator, ranks, micro-batches)
class EverySchedule : public testing::TestWithParam<std::tuple<std::string_view, int32_t>> {};

TEST_P(EverySchedule, IsValidAndAccumulatesInOrderForAnyMicroBatches) {
  const auto& [name, ranks] = GetParam();
  for (int32_t micro_batches = 1; micro_batches <= 2 * ranks + 5; ++micro_batches) {
    const Schedule schedule = *Generate(name, ranks, micro_batches);
    EXPECT_EQ(schedule.micro_batches, micro_batches);
    const absl::Status valid = Validate(schedule);
    EXPECT_TRUE(valid.ok()) << ranks << " x " << micro_batches << ": " << valid;
    const absl::Status in_order = AccumulatesInOrder(schedule);
    EXPECT_TRUE(in_order.ok()) << ranks << " x " << micro_batches << ": " << in_order;
  }
}

INSTANTIATE_TEST_SUITE_P(ManyShapes, EverySchedule,
                         testing::Combine(testing::ValuesIn(GeneratorNames()),
                                          testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)));

// A schedule's costs of one micro-batch on one rank, as in its paper.
struct Costs {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
};

struct Outcome {
  double makespan_excess = 0;  // over a rank's work
  double span_excess = 0;      // the worst rank's time from its first action to its last, over its work
  double held = 0;             // the fullest rank, in micro-batches
};

Outcome Measure(std::string_view name, int32_t ranks, int32_t micro_batches, const Costs& rank_costs = {}) {
  const Schedule schedule = *Generate(name, ranks, micro_batches);
  const double share = static_cast<double>(ranks) / schedule.stages;
  SimulationCosts costs;
  costs.stages.assign(schedule.stages, {rank_costs.forward * share, rank_costs.input_gradient * share,
                                        rank_costs.weight_gradient * share, share, share});
  const Simulation simulation = *Simulate(schedule, costs);
  const double work = micro_batches * (rank_costs.forward + rank_costs.input_gradient + rank_costs.weight_gradient);
  Outcome outcome{.makespan_excess = simulation.makespan_seconds - work};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const auto& actions = simulation.ranks[rank];
    outcome.span_excess =
        std::max(outcome.span_excess, actions.back().end_seconds - actions.front().start_seconds - work);
    outcome.held = std::max(outcome.held, simulation.peak_activation_bytes[rank]);
  }
  return outcome;
}

class PublishedCounts : public testing::TestWithParam<int32_t> {
 protected:
  const int32_t p_ = GetParam();
};

TEST_P(PublishedCounts, ZbH1HasABubbleOfForwardPlusInputGradientLessWeightGradientPerHop) {
  for (const Costs& costs : {Costs{1, 1, 1}, Costs{1, 1.2, 0.8}, Costs{1, 1.25, 0.5}}) {
    for (const int32_t micro_batches : {2 * p_ - 1, 2 * p_, 3 * p_ + 1}) {
      const Outcome outcome = Measure("zb-h1", p_, micro_batches, costs);
      EXPECT_NEAR(outcome.makespan_excess, (p_ - 1) * (costs.forward + costs.input_gradient - costs.weight_gradient),
                  1e-9);
      EXPECT_EQ(outcome.held, p_);
    }
  }
}

TEST_P(PublishedCounts, ZbH2LeavesNoRankIdleBetweenItsFirstAndLastAction) {
  for (const int32_t micro_batches : {2 * p_ - 1, 2 * p_, 3 * p_ + 1}) {
    const Outcome outcome = Measure("zb-h2", p_, micro_batches);
    EXPECT_NEAR(outcome.span_excess, 0, 1e-9);
    EXPECT_NEAR(outcome.makespan_excess, p_ - 1, 1e-9);
    EXPECT_EQ(outcome.held, 2 * p_ - 1);
  }
}

TEST_P(PublishedCounts, ZbvLeavesNoRankIdleWithAsManyMicroBatchesAs1F1BHolds) {
  for (const int32_t micro_batches : {2 * p_ - 1, 2 * p_, 3 * p_ + 1}) {
    const Outcome outcome = Measure("zbv", p_, micro_batches);
    EXPECT_NEAR(outcome.span_excess, 0, 1e-9);
    EXPECT_NEAR(outcome.makespan_excess, (p_ - 1) / 2.0, 1e-9);  // ranks start half a forward after each other
    EXPECT_EQ(outcome.held, p_);
  }
}

TEST_P(PublishedCounts, VHalfHoldsAboutHalfAndHasAtMostHalfTheBubble) {
  for (const int32_t micro_batches : {2 * p_ - 1, 2 * p_, 3 * p_ + 1}) {
    const Outcome outcome = Measure("v-half", p_, micro_batches);
    EXPECT_EQ(outcome.held, (p_ + 2) / 2);
    EXPECT_LE(outcome.makespan_excess, 3 * (p_ - 1) / 2.0 + 1e-9);
  }
}

TEST_P(PublishedCounts, VMinHoldsAboutAThirdAndHasTwoThirdsOfTheBubble) {
  for (const int32_t micro_batches : {2 * p_ - 1, 2 * p_, 3 * p_ + 1}) {
    const Outcome outcome = Measure("v-min", p_, micro_batches);
    EXPECT_EQ(outcome.held, (p_ + 4) / 3);
    EXPECT_LE(outcome.makespan_excess, 2 * p_ - 2 + 1e-9);
  }
}

TEST_P(PublishedCounts, Interleaved1F1BHasHalfTheBubbleWhereRanksDivideTheMicroBatches) {
  const Outcome outcome = Measure("interleaved-1f1b", p_, 2 * p_);
  EXPECT_NEAR(outcome.makespan_excess, 3 * (p_ - 1) / 2.0, 1e-9);
  EXPECT_EQ(outcome.held, (3 * p_ - 1) / 2.0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PublishedCounts, testing::Values(2, 3, 4, 5, 6, 8, 12, 16));

// Bubble rates of the public schedulers' output, simulated with the same costs.
TEST(Generators, BubbleRatesEqualThoseOfThePublicSchedulers) {
  const auto rate = [](std::string_view name, int32_t ranks, int32_t micro_batches, const Costs& costs) {
    const double work = micro_batches * (costs.forward + costs.input_gradient + costs.weight_gradient);
    const double excess = Measure(name, ranks, micro_batches, costs).makespan_excess;
    return excess / (work + excess);
  };
  const Costs slow_gradient{1, 1.2, 0.8};
  const Costs slow_weights{1, 0.9, 1.3};
  EXPECT_NEAR(rate("v-min", 4, 12, {}), 0.133, 6e-4);
  EXPECT_NEAR(rate("v-min", 8, 24, {}), 0.158, 6e-4);
  EXPECT_NEAR(rate("v-half", 4, 12, {}), 0.065, 6e-4);
  EXPECT_NEAR(rate("v-half", 8, 24, {}), 0.106, 6e-4);
  EXPECT_NEAR(rate("v-min", 4, 12, slow_gradient), 0.262, 6e-4);
  EXPECT_NEAR(rate("v-min", 8, 24, slow_gradient), 0.284, 6e-4);
  EXPECT_NEAR(rate("v-min", 8, 24, slow_weights), 0.136, 2e-3);
  // Where input gradients are slow, V-Min is slower than 1F1B.
  EXPECT_GT(rate("v-min", 4, 12, slow_gradient), rate("1f1b", 4, 12, slow_gradient));
}

TEST(Generators, ActivationsOfVSchedulesAtEightRanksAreAFractionOf1F1Bs) {
  const double whole = Measure("1f1b", 8, 24).held;
  EXPECT_EQ(Measure("v-half", 8, 24).held / whole, 0.625);
  EXPECT_EQ(Measure("v-min", 8, 24).held / whole, 0.5);
}

TEST(Generators, UnknownNameListsTheKnownOnes) {
  EXPECT_THAT(GeneratorNames(),
              ElementsAre("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-h2", "zbv", "v-half", "v-min"));
  for (const absl::Status& status : {Generate("zb-v", 2, 2).status(), FindGenerator("zb-v").status()}) {
    EXPECT_EQ(ErrorReason(status), "SCHEDULE_UNKNOWN");
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected one of 1f1b, gpipe, interleaved-1f1b"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("found 'zb-v'"));
  }
}

TEST(Generators, CountsBelowOneOrBeyondReasonAreRefused) {
  for (const std::string_view name : GeneratorNames()) {
    for (const auto& [ranks, micro_batches] : std::vector<std::pair<int32_t, int32_t>>{
             {0, 4}, {4, 0}, {-1, 1}, {1 << 20, 1 << 20}, {1'000'001, 1}, {4097, 1}, {4, 1 << 30}}) {
      const auto schedule = Generate(name, ranks, micro_batches);
      ASSERT_FALSE(schedule.ok());
      EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_EQ(ErrorReason(schedule.status()), "SCHEDULE_COUNTS");
    }
  }
}

}  // namespace
}  // namespace atl::schedule
