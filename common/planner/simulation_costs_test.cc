#include <gtest/gtest.h>

#include "common/planner/plan.h"
#include "common/schedule/generators.h"
#include "common/schedule/self_conditioning.h"

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

TEST(CostsOf, SelfConditioningHasLanesAFeedbackAndTransients) {
  TwoRanks two;
  two.profile.transfer_latency_seconds = 0.5;
  two.profile.transfer_bytes_per_second = 1000;
  two.plan.recomputed_layers = {2};
  const schedule::SimulationCosts plain = CostsOf(two.plan, two.profile);
  EXPECT_EQ(plain.feedback_transfer_seconds, 1.5) << "1000 bytes of the last layer";
  EXPECT_EQ(plain.stages[0].self_conditioning_transient_bytes, 40 + 5);
  EXPECT_EQ(plain.stages[1].self_conditioning_transient_bytes, 100 + 4000 + 500)
      << "a layer's input, its own, its peak";
  two.plan.self_conditioned = schedule::AddSelfConditioning(two.plan.schedule, plain);
  const schedule::SimulationCosts costs = CostsOf(two.plan, two.profile);
  // Rank 0 a buffer for the feedback; rank 1 one more for the activation, and three micro-batches' results.
  EXPECT_EQ(costs.fixed_bytes[0], plain.fixed_bytes[0] + 1000);
  EXPECT_EQ(costs.fixed_bytes[1], plain.fixed_bytes[1] + 10 + 3 * 1000);
  // One rank, two stages: nothing moves.
  two.plan.stages = {{0, 0, 1}, {0, 1, 3}};
  two.plan.schedule = *schedule::ParseText("0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1,0F2,1F2,1B2,0B2\n");
  two.plan.self_conditioned = {};
  const double alone = CostsOf(two.plan, two.profile).fixed_bytes[0];
  two.plan.self_conditioned = schedule::AddSelfConditioning(two.plan.schedule, plain);
  EXPECT_EQ(CostsOf(two.plan, two.profile).fixed_bytes[0], alone + 3 * 1000);
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

TEST(CostsOf, ARecomputedLayerKeepsItsInputAndRunsItsForwardAgain) {
  TwoRanks two;
  two.plan.recomputed_layers = {2};
  const schedule::StageCost cost = CostsOf(two.plan, two.profile).stages[1];
  EXPECT_EQ(cost.forward_seconds, 110);
  EXPECT_EQ(cost.input_gradient_seconds, 220 + 100);
  EXPECT_EQ(cost.weight_gradient_seconds, 330);
  EXPECT_EQ(cost.backward_seconds, 440 + 100);
  EXPECT_EQ(cost.activation_bytes, 400 + 100) << "what layer 1 passes on";
  EXPECT_EQ(cost.weight_gradient_bytes, 3300) << "there again after I";
  EXPECT_EQ(cost.backward_transient_bytes, 700 + 3900);
}

TEST(CostsOf, AReductionIsARingOverTheReplicas) {
  TwoRanks two;
  two.profile.transfer_latency_seconds = 0.5;
  two.profile.transfer_bytes_per_second = 100;
  EXPECT_EQ(CostsOf(two.plan, two.profile).stages[1].reduce_seconds, 0);
  two.plan.replicas = 3;
  EXPECT_EQ(CostsOf(two.plan, two.profile).stages[1].reduce_seconds, 4 * (0.5 + 6000.0 / 3 / 100));
}

TEST(CostsOf, AReductionHoldsARanksGradientsOnceMore) {
  TwoRanks two;
  EXPECT_EQ(CostsOf(two.plan, two.profile).stages[1].reduce_bytes, 0);
  two.plan.replicas = 2;
  EXPECT_EQ(CostsOf(two.plan, two.profile).stages[0].reduce_bytes, 1000);
  EXPECT_EQ(CostsOf(two.plan, two.profile).stages[1].reduce_bytes, 6000);
  // Two stages of one rank may be on their way together.
  two.plan.stages[1].rank = 0;
  two.plan.schedule.rank_of_stage = {0, 0};
  EXPECT_EQ(CostsOf(two.plan, two.profile).stages[1].reduce_bytes, 7000);
}

TEST(CostsOf, PiecesReadThoseThatMadeTheirSamplesAndRanksHoldWhatTheyRun) {
  TwoRanks two;
  two.profile.transfer_latency_seconds = 1;
  two.profile.transfer_bytes_per_second = 3;
  two.profile.rank_slowdown = {1, 2};
  const FrozenLayerProfile layer{
      .seconds = {{1, 1.0}}, .input_bytes = 3, .output_bytes = 5, .parameter_bytes = 1'000'000};
  two.profile.frozen = {{.name = "a", .layers = {layer}}, {.name = "b", .reads = {0}, .layers = {layer, layer}}};
  two.plan.components = {{.layers = 1}, {.layers = 2, .reads = 0, .to_last_stage = true}};
  two.plan.frozen = {
      {0, 0, 1, 0, 0, 4}, {0, 0, 1, 1, 4, 2}, {1, 0, 1, 1, 0, 6}, {1, 1, 2, 0, 0, 2}, {1, 1, 2, 1, 2, 4}};
  const auto add = [&](int32_t rank, int32_t piece) {
    two.plan.schedule.ranks[rank].push_back({schedule::ActionKind::kFrozen, 0, piece});
  };
  for (const int32_t piece : {0, 3}) add(0, piece);
  for (const int32_t piece : {1, 2, 4}) add(1, piece);
  two.plan.schedule.frozen_pieces = 5;
  const schedule::SimulationCosts costs = CostsOf(two.plan, two.profile);
  ASSERT_EQ(costs.frozen.size(), 5u);
  EXPECT_EQ(costs.frozen[0].reads, (std::vector<int32_t>{}));
  EXPECT_EQ(costs.frozen[2].reads, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(costs.frozen[4].reads, (std::vector<int32_t>{2}));
  EXPECT_EQ(costs.frozen[0].seconds, 4);
  EXPECT_EQ(costs.frozen[1].seconds, 4) << "two samples on the slow rank";
  EXPECT_EQ(costs.frozen[0].transfer_seconds, 0);
  EXPECT_EQ(costs.frozen[2].transfer_seconds, 1 + 6 * 3 / 3);
  EXPECT_EQ(costs.frozen[4].output_bytes, 20);
  EXPECT_EQ(costs.frozen[2].output_bytes, 0) << "read by the next layer and gone";
  // Weights of two and three layers, the largest output between layers, and on the last rank two batches of outputs.
  EXPECT_EQ(costs.fixed_bytes[0], 5010 + 2'000'000 + 20);
  EXPECT_EQ(costs.fixed_bytes[1], 30010 + 3'000'000 + 30 + 2 * 30);
}

}  // namespace
}  // namespace atl::planner
