#include "common/schedule/timeline.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/schedule/generators.h"

namespace atl::schedule {
namespace {

using ::testing::ElementsAre;

SimulationCosts Costs(int32_t stages, double transfer_seconds) {
  SimulationCosts costs;
  costs.stages.assign(stages, {1, 1, 1, 10, 4});
  costs.transfer_seconds = transfer_seconds;
  return costs;
}

TEST(Timeline, TransfersGoBetweenRanksOnly) {
  // Both passes over one boundary; stages 1 and 2 share a rank.
  const Schedule schedule = *ParseText("0F0,0B0,E0\n1F0,2F0,2B0,1B0,E1\n");
  SimulationCosts costs = Costs(3, 0.5);
  costs.boundary_transfer_seconds = {0.25, 9};
  costs.frozen = {{.seconds = 1}, {.seconds = 1, .reads = {0}, .transfer_seconds = 2}};
  const std::vector<Transfer> transfers = Transfers(schedule, costs, *Simulate(schedule, costs));
  ASSERT_EQ(transfers.size(), 3u);
  EXPECT_EQ(ToString(transfers[0].action), "0F0");
  EXPECT_EQ(transfers[0].from_rank, 0);
  EXPECT_EQ(transfers[0].to_rank, 1);
  EXPECT_EQ(transfers[0].start_seconds, 1);
  EXPECT_EQ(transfers[0].end_seconds, 1.25);
  EXPECT_EQ(ToString(transfers[1].action), "1B0");
  EXPECT_EQ(transfers[1].to_rank, 0);
  EXPECT_EQ(ToString(transfers[2].action), "E0");
  EXPECT_EQ(transfers[2].end_seconds - transfers[2].start_seconds, 2);
}

TEST(Timeline, TheFeedbackGoesFromTheLastStagesRankToTheFirsts) {
  const Schedule schedule = *ParseText("0C0,0F0,0B0\n1C0,1F0,1B0\n");
  SimulationCosts costs = Costs(2, 0.25);
  costs.feedback_transfer_seconds = 0.75;
  const std::vector<Transfer> transfers = Transfers(schedule, costs, *Simulate(schedule, costs));
  ASSERT_EQ(transfers.size(), 4u);
  EXPECT_EQ(ToString(transfers[0].action), "0C0");
  EXPECT_EQ(ToString(transfers[1].action), "1C0");
  EXPECT_EQ(transfers[1].from_rank, 1);
  EXPECT_EQ(transfers[1].to_rank, 0);
  EXPECT_EQ(transfers[1].end_seconds - transfers[1].start_seconds, 0.75);
  // In a V it stays on its rank.
  const Schedule v = *ParseText("0C0,3C0,0F0,3F0,3B0,0B0\n1C0,2C0,1F0,2F0,2B0,1B0\n");
  EXPECT_EQ(Transfers(v, Costs(4, 0.25), *Simulate(v, Costs(4, 0.25))).size(), 6u);
}

TEST(Timeline, MemoryRisesAtForwardsAndFallsInTwoSteps) {
  SimulationCosts costs = Costs(1, 0);
  costs.fixed_bytes = {100};
  costs.stages[0].backward_transient_bytes = 3;
  const Schedule schedule = *ParseText("0F0,0I0,0W0\n");
  EXPECT_THAT(MemoryOverTime(costs, *Simulate(schedule, costs))[0],
              ElementsAre(MemoryPoint{0, 110}, MemoryPoint{1, 113}, MemoryPoint{2, 107}, MemoryPoint{3, 100}));
}

TEST(Timeline, MemoryPeaksWhereTheSimulationSays) {
  for (const std::string_view name : GeneratorNames()) {
    const Schedule schedule = *Generate(name, 3, 5);
    SimulationCosts costs = Costs(schedule.stages, 0.2);
    costs.fixed_bytes = {5, 6, 7};
    for (StageCost& cost : costs.stages) cost.forward_transient_bytes = 2;
    const Simulation simulation = *Simulate(schedule, costs);
    const auto memory = MemoryOverTime(costs, simulation);
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      double peak = 0;
      for (const MemoryPoint& point : memory[rank]) peak = std::max(peak, point.bytes);
      EXPECT_DOUBLE_EQ(peak, simulation.peak_bytes[rank]) << name;
      EXPECT_NEAR(memory[rank].back().bytes, costs.fixed_bytes[rank], 1e-9) << name;
    }
  }
}

}  // namespace
}  // namespace atl::schedule
