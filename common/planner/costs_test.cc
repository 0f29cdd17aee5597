#include <gtest/gtest.h>

#include "common/planner/plan.h"

namespace atl::planner {
namespace {

const spec::ModelSpec kModel{.patch = 2, .width = 256, .depth = 8, .heads = 4, .mlp_ratio = 4};

TEST(CountedCosts, OnePerLayerEmbeddingAndHeadAreCheap) {
  const auto costs = CountedCosts(kModel, /*tokens=*/64, /*channels=*/1);
  ASSERT_EQ(costs.size(), 10u);
  EXPECT_LT(costs.front().forward_seconds, 0.05 * costs[1].forward_seconds);
  EXPECT_LT(costs.back().forward_seconds, 0.05 * costs[1].forward_seconds);
  EXPECT_EQ(costs[1].forward_seconds, costs[8].forward_seconds);
}

TEST(CountedCosts, BackwardOfABlockIsTwiceItsForward) {
  const LayerCost block = CountedCosts(kModel, 64, 1)[1];
  EXPECT_NEAR(block.input_gradient_seconds + block.weight_gradient_seconds, 2 * block.forward_seconds,
              1e-9 * block.forward_seconds);
  // Attention has no weights.
  EXPECT_GT(block.input_gradient_seconds, block.weight_gradient_seconds);
}

TEST(CountedCosts, BlocksGrowWithTheSquareOfTheWidth) {
  spec::ModelSpec wide = kModel;
  wide.width *= 2;
  const double ratio = CountedCosts(wide, 64, 1)[1].forward_seconds / CountedCosts(kModel, 64, 1)[1].forward_seconds;
  EXPECT_GT(ratio, 3.8);
  EXPECT_LE(ratio, 4.0);
}

TEST(StageCosts, SumTheLayersOfAStageTimesTheMicroBatch) {
  const std::vector<LayerCost> costs{{1, 2, 3, 4}, {10, 20, 30, 40}, {100, 200, 300, 400}};
  Plan plan;
  plan.micro_batch_size = 2;
  plan.stages = {{0, 0, 1}, {1, 1, 3}};
  const schedule::SimulationCosts stages = StageCosts(plan, costs);
  ASSERT_EQ(stages.stages.size(), 2u);
  EXPECT_EQ(stages.stages[0].forward_seconds, 2);
  EXPECT_EQ(stages.stages[1].forward_seconds, 220);
  EXPECT_EQ(stages.stages[1].input_gradient_seconds, 440);
  EXPECT_EQ(stages.stages[1].weight_gradient_seconds, 660);
  EXPECT_EQ(stages.stages[1].activation_bytes, 880);
}

}  // namespace
}  // namespace atl::planner
