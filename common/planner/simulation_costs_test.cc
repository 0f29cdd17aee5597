#include <gtest/gtest.h>

#include "common/planner/plan.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

LayerProfile Layer(double unit) {
  return {.forward_seconds = unit,
          .input_gradient_seconds = 2 * unit,
          .weight_gradient_seconds = 3 * unit,
          .backward_seconds = 4 * unit,
          .kept_bytes = 40 * unit,
          .weight_gradient_bytes = 30 * unit,
          .forward_transient_bytes = 5 * unit,
          .backward_transient_bytes = 7 * unit,
          .output_bytes = 10 * unit};
}

struct TwoRanks {
  TwoRanks() {
    profile.layers[2] = {Layer(1), Layer(10), Layer(100)};
    profile.parameter_bytes = {1000, 2000, 4000};
    plan.micro_batches = 3;
    plan.micro_batch_size = 2;
    plan.stages = {{0, 0, 1}, {1, 1, 3}};
    plan.schedule = schedule::Generate1F1B(2, 3).value();
  }
  Profile profile;
  Plan plan;
};

TEST(CostsOf, SumTheLayersOfAStage) {
  const TwoRanks two;
  const schedule::SimulationCosts costs = CostsOf(two.plan, two.profile);
  ASSERT_EQ(costs.stages.size(), 2u);
  EXPECT_EQ(costs.stages[0].forward_seconds, 1);
  EXPECT_EQ(costs.stages[1].forward_seconds, 110);
  EXPECT_EQ(costs.stages[1].input_gradient_seconds, 220);
  EXPECT_EQ(costs.stages[1].weight_gradient_seconds, 330);
  EXPECT_EQ(costs.stages[1].backward_seconds, 440);
  EXPECT_EQ(costs.stages[1].activation_bytes, 4400);
  EXPECT_EQ(costs.stages[1].weight_gradient_bytes, 3300);
  // One layer after the other: not the sum.
  EXPECT_EQ(costs.stages[1].forward_transient_bytes, 500);
  EXPECT_EQ(costs.stages[1].backward_transient_bytes, 700);
}

TEST(CostsOf, ABoundaryCostsLatencyAndBytes) {
  TwoRanks two;
  two.profile.transfer_latency_seconds = 0.5;
  two.profile.transfer_bytes_per_second = 20;
  EXPECT_EQ(CostsOf(two.plan, two.profile).boundary_transfer_seconds, (std::vector<double>{1.0}));
}

TEST(CostsOf, RanksHoldFiveTimesTheirParametersAndAReceiveBufferPerLane) {
  const TwoRanks two;
  EXPECT_EQ(CostsOf(two.plan, two.profile).fixed_bytes, (std::vector<double>{5 * 1000 + 10, 5 * 6000 + 10}));
}

TEST(CostsOf, TheSlowestReplicaOfARankSetsItsPace) {
  TwoRanks two;
  two.plan.replicas = 2;
  two.profile.rank_slowdown = {1, 1, 1.5, 2};
  const schedule::SimulationCosts costs = CostsOf(two.plan, two.profile);
  EXPECT_EQ(costs.stages[0].forward_seconds, 1.5);
  EXPECT_EQ(costs.stages[1].backward_seconds, 880);
}

}  // namespace
}  // namespace atl::planner
