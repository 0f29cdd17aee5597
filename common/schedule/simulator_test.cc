#include "common/schedule/simulator.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"

namespace atl::schedule {
namespace {

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

TEST(Simulate, RefusesInvalidSchedulesAndCosts) {
  Schedule schedule = *Generate1F1B(2, 2);
  EXPECT_EQ(ErrorReason(Simulate(schedule, EqualCosts(3)).status()), "SIMULATION_COSTS");
  SimulationCosts negative = EqualCosts(2);
  negative.stages[1].forward_seconds = -1;
  EXPECT_EQ(ErrorReason(Simulate(schedule, negative).status()), "SIMULATION_COSTS");
  EXPECT_EQ(ErrorReason(Simulate(schedule, EqualCosts(2, -1)).status()), "SIMULATION_COSTS");
  std::swap(schedule.ranks[0][0], schedule.ranks[0][3]);
  EXPECT_EQ(ErrorReason(Simulate(schedule, EqualCosts(2)).status()), "SCHEDULE_ORDER");
}

}  // namespace
}  // namespace atl::schedule
