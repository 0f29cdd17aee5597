#include "common/schedule/simulator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"

namespace atl::schedule {
namespace {

using ::testing::HasSubstr;

constexpr double kForward = 1.0;
constexpr double kInputGradient = 1.25;
constexpr double kWeightGradient = 0.5;
constexpr double kBackward = kInputGradient + kWeightGradient;

SimulationCosts EqualCosts(int32_t stages, double transfer_seconds = 0) {
  SimulationCosts costs;
  costs.stages.assign(stages, {kForward, kInputGradient, kWeightGradient, 1, 0.75});
  costs.transfer_seconds = transfer_seconds;
  return costs;
}

// (stages, micro-batches)
class EqualStages : public testing::TestWithParam<std::tuple<int32_t, int32_t>> {
 protected:
  const int32_t p_ = std::get<0>(GetParam());
  const int32_t m_ = std::get<1>(GetParam());
};

TEST_P(EqualStages, OneFOneBBubbleIsOnePassOverTheOtherStages) {
  const Simulation simulation = *Simulate(*Generate1F1B(p_, m_), EqualCosts(p_));
  EXPECT_NEAR(simulation.makespan_seconds, (m_ + p_ - 1) * (kForward + kBackward), 1e-9);
  EXPECT_NEAR(simulation.bubble, static_cast<double>(p_ - 1) / (m_ + p_ - 1), 1e-9);
}

TEST_P(EqualStages, OneFOneBHoldsAsManyMicroBatchesAsStagesFollow) {
  const Simulation simulation = *Simulate(*Generate1F1B(p_, m_), EqualCosts(p_));
  for (int32_t s = 0; s < p_; ++s) EXPECT_EQ(simulation.peak_activation_bytes[s], std::min(p_ - s, m_)) << s;
}

TEST_P(EqualStages, GPipeHasTheSameBubbleAndHoldsEveryMicroBatch) {
  const Simulation simulation = *Simulate(*GenerateGPipe(p_, m_), EqualCosts(p_));
  EXPECT_NEAR(simulation.makespan_seconds, (m_ + p_ - 1) * (kForward + kBackward), 1e-9);
  for (int32_t s = 0; s < p_; ++s) EXPECT_EQ(simulation.peak_activation_bytes[s], m_);
}

TEST_P(EqualStages, NoRankRunsTwoActionsAtOnceAndInputsPrecedeTheirReaders) {
  constexpr double kTransfer = 0.25;
  for (const std::string_view name : GeneratorNames()) {
    const Schedule schedule = *Generate(name, p_, m_);
    const Simulation simulation = *Simulate(schedule, EqualCosts(schedule.stages, kTransfer));
    std::vector<double> forward_end(static_cast<size_t>(schedule.stages) * m_, 0);
    for (const auto& rank : simulation.ranks) {
      for (const SimulatedAction& run : rank) {
        if (run.action.kind != ActionKind::kForward) continue;
        forward_end[run.action.stage * m_ + run.action.micro_batch] = run.end_seconds;
      }
    }
    for (const auto& rank : simulation.ranks) {
      for (size_t i = 0; i < rank.size(); ++i) {
        if (i > 0) {
          EXPECT_GE(rank[i].start_seconds, rank[i - 1].end_seconds);
        }
        const Action& action = rank[i].action;
        if (action.kind != ActionKind::kForward || action.stage == 0) continue;
        const bool same_rank = schedule.rank_of_stage[action.stage] == schedule.rank_of_stage[action.stage - 1];
        EXPECT_GE(rank[i].start_seconds,
                  forward_end[(action.stage - 1) * m_ + action.micro_batch] + (same_rank ? 0 : kTransfer));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ManyShapes, EqualStages,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 8, 16),
                                          testing::Values(1, 2, 3, 4, 7, 8, 16, 33)));

TEST(Simulate, TransferIsExposedOnTheCriticalPathOnly) {
  // One micro-batch over two stages: the last rank waits for one hop, the first for two.
  const Simulation one = *Simulate(*Generate1F1B(2, 1), EqualCosts(2, 0.5));
  EXPECT_NEAR(one.makespan_seconds, 2 * (kForward + kBackward) + 1.0, 1e-9);
  EXPECT_NEAR(one.exposed_transfer_seconds[0], 1.0, 1e-9);
  EXPECT_NEAR(one.exposed_transfer_seconds[1], 0.5, 1e-9);
  // GPipe keeps the last stage busy: its transfers overlap all but the first.
  const Simulation many = *Simulate(*GenerateGPipe(2, 8), EqualCosts(2, 0.5));
  EXPECT_NEAR(many.exposed_transfer_seconds[1], 0.5, 1e-9);
  EXPECT_EQ(Simulate(*GenerateGPipe(2, 8), EqualCosts(2))->exposed_transfer_seconds, (std::vector<double>{0, 0}));
}

TEST(Simulate, HopsWithinARankCostNoTransfer) {
  const Schedule schedule = *ParseText("0F0,1F0,1B0,0B0\n");
  const Simulation simulation = *Simulate(schedule, EqualCosts(2, 100));
  EXPECT_NEAR(simulation.makespan_seconds, 2 * (kForward + kBackward), 1e-9);
  EXPECT_NEAR(simulation.bubble, 0, 1e-9);
}

TEST(Simulate, WeightGradientBytesStayUntilTheWeightGradient) {
  SimulationCosts costs;
  costs.stages = {{1, 1, 1, 10, 8}};
  EXPECT_EQ(Simulate(*ParseText("0F0,0I0,0F1,0W0,0I1,0W1\n"), costs)->peak_activation_bytes[0], 18);
  EXPECT_EQ(Simulate(*ParseText("0F0,0I0,0W0,0F1,0I1,0W1\n"), costs)->peak_activation_bytes[0], 10);
}

TEST(Simulate, UnequalStagesAreBoundByTheSlowest) {
  SimulationCosts costs;
  costs.stages = {{1, 1, 1, 1, 0}, {2, 2, 2, 1, 0}};
  const Simulation simulation = *Simulate(*Generate1F1B(2, 10), costs);
  EXPECT_NEAR(simulation.makespan_seconds, 1 + 10 * 6 + 2, 1e-9);
}

SimulationCosts WithFrozen(int32_t stages, std::vector<FrozenCost> frozen) {
  SimulationCosts costs = EqualCosts(stages);
  costs.frozen = std::move(frozen);
  return costs;
}

TEST(Simulate, BoundariesMayCostDifferently) {
  SimulationCosts costs = EqualCosts(3, /*transfer_seconds=*/100);
  costs.boundary_transfer_seconds = {0.5, 0.25};
  const Simulation simulation = *Simulate(*Generate1F1B(3, 1), costs);
  EXPECT_NEAR(simulation.makespan_seconds, 3 * (kForward + kBackward) + 2 * 0.75, 1e-9);
  EXPECT_NEAR(simulation.exposed_transfer_seconds[2], 0.75, 1e-9);
}

TEST(Simulate, OnePassBackwardReplacesTheSumWhereItIsGiven) {
  SimulationCosts costs = EqualCosts(1);
  costs.stages[0].backward_seconds = 1.5;
  EXPECT_NEAR(Simulate(*ParseText("0F0,0B0\n"), costs)->makespan_seconds, kForward + 1.5, 1e-9);
  EXPECT_NEAR(Simulate(*ParseText("0F0,0I0,0W0\n"), costs)->makespan_seconds, kForward + kBackward, 1e-9);
}

TEST(Simulate, ReductionsWaitForTheirRankOnly) {
  SimulationCosts costs = EqualCosts(2);
  costs.stages[0].reduce_seconds = 3;
  costs.stages[1].reduce_seconds = 5;
  const Simulation simulation = *Simulate(*ParseText("0F0,0B0,R0\n1F0,1B0,R1\n"), costs);
  const SimulatedAction& last = simulation.ranks[1].back();
  EXPECT_NEAR(last.start_seconds, 2 * kForward + kBackward, 1e-9);
  EXPECT_NEAR(last.end_seconds, 2 * kForward + kBackward + 5, 1e-9);
  EXPECT_NEAR(simulation.ranks[0].back().end_seconds, 2 * kForward + 2 * kBackward + 3, 1e-9);
}

TEST(Simulate, FrozenPiecesWaitForThePiecesThatTheyReadAndForTransfers) {
  const Schedule schedule = *ParseText("E0,0F0,0B0,E2\n1F0,E1,1B0\n");
  const Simulation simulation =
      *Simulate(schedule, WithFrozen(2, {{.seconds = 2},
                                         {.seconds = 1, .reads = {0}, .transfer_seconds = 4},
                                         {.seconds = 1, .reads = {0, 1}, .transfer_seconds = 4}}));
  // Rank 1's piece reads the first one, which ended at 2, over a hop of 4.
  EXPECT_NEAR(simulation.ranks[1][1].start_seconds, 6, 1e-9);
  EXPECT_NEAR(simulation.ranks[1][2].end_seconds, 7 + kBackward, 1e-9);
  // The last one's input from its own rank moves at no cost, the other has arrived at 11, before the backward's end.
  EXPECT_NEAR(simulation.ranks[0][3].start_seconds, std::max(11.0, 7 + 2 * kBackward), 1e-9);
  EXPECT_GT(simulation.exposed_transfer_seconds[1], 0);
}

TEST(Simulate, FrozenPiecesThatReadInACircleAreADeadlock) {
  const Schedule schedule = *ParseText("E0,0F0,0B0\n1F0,E1,1B0\n");
  const absl::Status status =
      Simulate(schedule, WithFrozen(2, {{.seconds = 1, .reads = {1}}, {.seconds = 1, .reads = {0}}})).status();
  EXPECT_EQ(ErrorReason(status), "SCHEDULE_DEADLOCK");
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0, position 0, E0: waits for ever for E1 of rank 1"));
}

TEST(Simulate, PeakBytesCountTransientsFrozenOutputsAndWhatIsFixed) {
  SimulationCosts costs;
  costs.stages = {{.activation_bytes = 10,
                   .weight_gradient_bytes = 4,
                   .forward_transient_bytes = 3,
                   .backward_transient_bytes = 7}};
  costs.frozen = {{.seconds = 1, .output_bytes = 2}};
  costs.fixed_bytes = {100};
  const auto peak = [&](const char* text) {
    const Simulation simulation = *Simulate(*ParseText(text), costs);
    return std::pair(simulation.peak_bytes[0], simulation.peak_activation_bytes[0]);
  };
  EXPECT_EQ(peak("0F0,0B0,E0\n"), std::pair(100 + 10 + 7.0, 10.0));
  EXPECT_EQ(peak("E0,0F0,0B0\n"), std::pair(100 + 2 + 10 + 7.0, 10.0));
  EXPECT_EQ(peak("0F0,0I0,0F1,0W0,0B1,E0\n"), std::pair(100 + 4 + 10 + 7.0, 14.0));
  costs.stages[0].backward_transient_bytes = 0;
  EXPECT_EQ(peak("0F0,0I0,0F1,0W0,0B1,E0\n"), std::pair(100 + 4 + 10 + 3.0, 14.0));
}

TEST(Simulate, TheFirstForwardWaitsForTheFeedback) {
  const Schedule schedule = *ParseText("0C0,0F0,0B0\n1C0,1F0,1B0\n");
  SimulationCosts costs = EqualCosts(2, /*transfer_seconds=*/0.5);
  costs.stages[1].forward_seconds = 3;
  // C takes as long as F, and so does every hop; the feedback as long as a hop …
  EXPECT_NEAR(Simulate(schedule, costs)->ranks[1][0].start_seconds, kForward + 0.5, 1e-9);
  EXPECT_NEAR(Simulate(schedule, costs)->ranks[0][1].start_seconds, kForward + 0.5 + 3 + 0.5, 1e-9);
  // … where nothing else is said.
  costs.feedback_transfer_seconds = 2;
  const Simulation simulation = *Simulate(schedule, costs);
  EXPECT_NEAR(simulation.ranks[0][1].start_seconds, kForward + 0.5 + 3 + 2, 1e-9);
  EXPECT_NEAR(simulation.exposed_transfer_seconds[0], 0.5 + 2 + 0.5 + 0.5, 1e-9) << "C there, back, F there, gradient";
  // On one rank it costs nothing.
  EXPECT_NEAR(Simulate(*ParseText("0C0,1C0,0F0,1F0,1B0,0B0\n"), costs)->ranks[0][2].start_seconds, kForward + 3, 1e-9);
}

TEST(Simulate, ForwardsOfSelfConditioningKeepNothing) {
  SimulationCosts costs;
  costs.stages = {{.activation_bytes = 10, .forward_transient_bytes = 3, .self_conditioning_transient_bytes = 9}};
  const auto peak = [&](const char* text) {
    const Simulation simulation = *Simulate(*ParseText(text), costs);
    return std::pair(simulation.peak_bytes[0], simulation.peak_activation_bytes[0]);
  };
  EXPECT_EQ(peak("0C0,0C1,0F0,0B0,0F1,0B1\n"), std::pair(10 + 3.0, 10.0));
  EXPECT_EQ(peak("0C0,0F0,0C1,0B0,0F1,0B1\n"), std::pair(10 + 9.0, 10.0));
}

TEST(Simulate, AReductionHoldsItsBuffersWhileItRuns) {
  Schedule schedule = *Generate1F1B(1, 2);
  schedule.ranks[0].push_back({ActionKind::kReduce, 0, 0});
  SimulationCosts costs{.stages = {{.activation_bytes = 10, .reduce_bytes = 7}}, .fixed_bytes = {100}};
  EXPECT_EQ(Simulate(schedule, costs)->peak_bytes[0], 110);
  costs.stages[0].reduce_bytes = 12;
  EXPECT_EQ(Simulate(schedule, costs)->peak_bytes[0], 112);
}

TEST(Simulate, WithoutValidationTheResultIsTheSame) {
  for (const std::string_view name : GeneratorNames()) {
    const Schedule schedule = *Generate(name, 4, 7);
    const SimulationCosts costs = EqualCosts(schedule.stages, 0.125);
    const Simulation validated = *Simulate(schedule, costs);
    const Simulation trusted = *SimulateValid(schedule, costs);
    EXPECT_EQ(trusted.makespan_seconds, validated.makespan_seconds);
    EXPECT_EQ(trusted.exposed_transfer_seconds, validated.exposed_transfer_seconds);
    EXPECT_EQ(trusted.peak_bytes, validated.peak_bytes);
  }
}

TEST(Simulate, RefusesInvalidSchedules) {
  Schedule schedule = *Generate1F1B(2, 2);
  std::swap(schedule.ranks[0][0], schedule.ranks[0][3]);
  EXPECT_EQ(ErrorReason(Simulate(schedule, EqualCosts(2)).status()), "SCHEDULE_ORDER");
}

struct BadCosts {
  void (*change)(SimulationCosts*);
  const char* message;
};

TEST(Simulate, RefusesCostsOfOtherCountsOrOutOfRange) {
  const Schedule schedule = *ParseText("0F0,0B0,E0\n1F0,1B0\n");
  const BadCosts cases[] = {
      {[](SimulationCosts* c) { c->stages.pop_back(); }, "expected costs of 2 stages, found 1"},
      {[](SimulationCosts* c) { c->stages[1].forward_seconds = -1; }, "stage 1: expected finite costs"},
      {[](SimulationCosts* c) { c->stages[0].reduce_seconds = NAN; }, "stage 0: expected finite costs"},
      {[](SimulationCosts* c) { c->stages[0].backward_seconds = INFINITY; }, "stage 0: expected finite costs"},
      {[](SimulationCosts* c) { c->stages[0].forward_transient_bytes = -1; }, "stage 0: expected finite costs"},
      {[](SimulationCosts* c) { c->stages[0].weight_gradient_bytes = -2; }, "stage 0: expected finite costs"},
      {[](SimulationCosts* c) { c->stages[1].self_conditioning_transient_bytes = -1; }, "stage 1: expected finite"},
      {[](SimulationCosts* c) { c->feedback_transfer_seconds = NAN; }, "a finite feedback_transfer_seconds, found nan"},
      {[](SimulationCosts* c) { c->transfer_seconds = -1; }, "transfer_seconds of at least 0, found -1"},
      {[](SimulationCosts* c) {
         c->boundary_transfer_seconds = {1, 1};
       },
       "of 1 boundaries, found 2"},
      {[](SimulationCosts* c) { c->boundary_transfer_seconds = {-1}; }, "of at least 0"},
      {[](SimulationCosts* c) { c->fixed_bytes = {1}; }, "fixed_bytes of 2 ranks, found 1"},
      {[](SimulationCosts* c) { c->frozen.clear(); }, "costs of 1 frozen pieces, found 0"},
      {[](SimulationCosts* c) { c->frozen[0].seconds = -1; }, "frozen piece 0: expected finite costs"},
      {[](SimulationCosts* c) { c->frozen[0].reads = {1}; },
       "frozen piece 0: expected to read pieces below 1, found 1"},
  };
  for (const BadCosts& bad : cases) {
    SimulationCosts costs = WithFrozen(2, {{.seconds = 1}});
    bad.change(&costs);
    const absl::Status status = Simulate(schedule, costs).status();
    EXPECT_EQ(ErrorReason(status), "SIMULATION_COSTS") << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace atl::schedule
