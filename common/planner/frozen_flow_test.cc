#include "common/planner/frozen_flow.h"

#include <functional>

#include "common/base/errors.h"
#include "common/schedule/self_conditioning.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::planner {
namespace {

using ::testing::HasSubstr;

// An encoder of three layers for both ends, and a component of one layer that reads it; two micro-batches of two.
Plan TwoRanks() {
  Plan plan;
  plan.micro_batches = 2;
  plan.micro_batch_size = 2;
  plan.stages = {{.rank = 0, .first_layer = 0, .end_layer = 1}, {.rank = 1, .first_layer = 1, .end_layer = 2}};
  plan.components = {{.layers = 3, .to_first_stage = true, .to_last_stage = true}, {.layers = 1, .reads = 0}};
  plan.frozen = {
      {.component = 0, .first_layer = 0, .end_layer = 2, .rank = 0, .first_sample = 0, .samples = 3},
      {.component = 0, .first_layer = 0, .end_layer = 2, .rank = 1, .first_sample = 3, .samples = 1},
      {.component = 0, .first_layer = 2, .end_layer = 3, .rank = 1, .first_sample = 0, .samples = 4},
      {.component = 1, .first_layer = 0, .end_layer = 1, .rank = 0, .first_sample = 0, .samples = 1},
      {.component = 1, .first_layer = 0, .end_layer = 1, .rank = 1, .first_sample = 1, .samples = 3},
  };
  plan.schedule = *schedule::ParseText("0F0,0F1,E0,0B0,0B1,E3\nE1,1F0,1B0,E2,1F1,1B1,E4\n");
  return plan;
}

TEST(FrozenFlowTest, PiecesReadWhatEndsWhereTheyBegin) {
  const auto flow = FrozenFlowOf(TwoRanks());
  ASSERT_TRUE(flow.ok()) << flow.status();
  EXPECT_EQ(flow->reads, (schedule::FrozenReads{{}, {}, {0, 1}, {2}, {2}}));
  EXPECT_EQ(flow->needed_by, (std::vector<std::vector<int32_t>>{{1}, {1}, {0, 1}, {}, {}}));
}

TEST(FrozenFlowTest, APlanWithoutPiecesHasAnEmptyFlow) {
  Plan plan = TwoRanks();
  plan.frozen.clear();
  plan.components.clear();
  plan.schedule = *schedule::ParseText("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const auto flow = FrozenFlowOf(plan);
  ASSERT_TRUE(flow.ok()) << flow.status();
  EXPECT_TRUE(flow->reads.empty());
}

TEST(FrozenFlowTest, AppendedPiecesCoverTheBatchAfterTheFlush) {
  Plan plan = TwoRanks();
  plan.frozen.clear();
  plan.schedule = *schedule::ParseText("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(ErrorReason(FrozenFlowOf(plan).status()), "FROZEN_PIECES");  // components without pieces
  AppendPieces(&plan);
  const auto flow = FrozenFlowOf(plan);
  ASSERT_TRUE(flow.ok()) << flow.status();
  EXPECT_EQ(schedule::ToText(plan.schedule), "0F0,0F1,0B0,0B1,E0,E2\n1F0,1B0,1F1,1B1,E1,E3\n");
  EXPECT_EQ(flow->reads, (schedule::FrozenReads{{}, {}, {0}, {1}}));
}

TEST(FrozenFlowTest, BothSchedulesOfASelfConditionedPlanHaveThePieces) {
  Plan plan = TwoRanks();
  plan.frozen.clear();
  plan.schedule = *schedule::ParseText("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  plan.self_conditioned = schedule::AddSelfConditioning(plan.schedule, {.stages = {{}, {}}});
  AppendPieces(&plan);
  EXPECT_TRUE(FrozenFlowOf(plan).ok()) << FrozenFlowOf(plan).status();
  EXPECT_EQ(schedule::ToText(plan.self_conditioned), "0C0,0C1,0F0,0F1,0B0,0B1,E0,E2\n1C0,1C1,1F0,1B0,1F1,1B1,E1,E3\n");
  plan.self_conditioned.ranks[1].pop_back();
  plan.self_conditioned.frozen_pieces = 3;
  EXPECT_EQ(ErrorReason(FrozenFlowOf(plan).status()), "SCHEDULE_MISMATCH");
}

TEST(FrozenFlowTest, PiecesMayWaitForEverInStepsWithCsAlone) {
  Plan plan = TwoRanks();
  plan.frozen = {{.component = 0, .first_layer = 0, .end_layer = 3, .rank = 1, .samples = 4},
                 {.component = 1, .first_layer = 0, .end_layer = 1, .rank = 0, .samples = 4}};
  plan.schedule = *schedule::ParseText("E1,0F0,0F1,0B0,0B1\nE0,1F0,1B0,1F1,1B1\n");
  EXPECT_TRUE(FrozenFlowOf(plan).ok()) << FrozenFlowOf(plan).status();
  plan.self_conditioned = *schedule::ParseText("E1,0C0,0C1,0F0,0F1,0B0,0B1\nE0,1C0,1C1,1F0,1B0,1F1,1B1\n");
  EXPECT_TRUE(FrozenFlowOf(plan).ok()) << FrozenFlowOf(plan).status();
  plan.self_conditioned = *schedule::ParseText("E1,0C0,0C1,0F0,0F1,0B0,0B1\n1C0,E0,1C1,1F0,1B0,1F1,1B1\n");
  const absl::Status status = FrozenFlowOf(plan).status();
  EXPECT_EQ(ErrorReason(status), "SCHEDULE_DEADLOCK");
  EXPECT_THAT(std::string(status.message()), HasSubstr("E1: waits for ever for E0 of rank 1, position 1"));
}

TEST(FrozenFlowTest, ComponentsFollowTheSpec) {
  const auto components = ComponentsOf({{.name = "a", .layers = {{.kind = "norm"}, {.kind = "norm"}}},
                                        {.name = "b", .input = "a", .output = "latent", .torchscript = {"x"}},
                                        {.name = "c", .input = "label", .output = "condition", .torchscript = {"x"}}});
  EXPECT_EQ(components,
            (std::vector<FrozenComponent>{{.layers = 2},
                                          {.layers = 1, .reads = 0, .to_first_stage = true, .to_last_stage = true},
                                          {.layers = 1, .to_first_stage = true}}));
}

TEST(FrozenFlowTest, WhatCannotBeIsNamed) {
  struct Bad {
    std::function<void(Plan&)> change;
    std::string reason;
    std::string message;
  };
  const Bad bads[] = {
      {[](Plan& p) { p.frozen.pop_back(); }, "FROZEN_PIECES", "expected 5, as in the schedule, found 4"},
      {[](Plan& p) { p.components[1].reads = 1; }, "FROZEN_PIECES", "component 1"},
      {[](Plan& p) { p.frozen[3].component = 2; }, "FROZEN_PIECES", "piece 3: expected layers of one of 2"},
      {[](Plan& p) { p.frozen[2].end_layer = 4; }, "FROZEN_PIECES", "layers 2 to 4"},
      {[](Plan& p) { p.frozen[2].samples = 5; }, "FROZEN_PIECES", "5 samples from 0"},
      {[](Plan& p) { p.frozen[2].samples = 2147483647; }, "FROZEN_PIECES", "piece 2"},
      {[](Plan& p) { p.frozen[1].rank = 0; }, "FROZEN_PIECES", "piece 1: expected rank 1"},
      {[](Plan& p) { p.frozen[0].samples = 2; }, "FROZEN_PIECES", "layer 0: expected one piece for every sample"},
      {[](Plan& p) { p.frozen[4].first_sample = 0; }, "FROZEN_PIECES", "component 1, layer 0"},
      {[](Plan& p) { p.frozen[2].first_layer = 1; }, "FROZEN_PIECES", "component 0, layer 1"},
      {[](Plan& p) {
         p.frozen[0].end_layer = 1, p.frozen[2].first_layer = 1, p.frozen[1].end_layer = 3, p.frozen[2].samples = 3;
       },
       "", ""},  // the fourth sample goes another way
      {[](Plan& p) { p.schedule = *schedule::ParseText("E3,0F0,0F1,E0,0B0,0B1\nE1,1F0,1B0,E2,1F1,1B1,E4\n"); },
       "SCHEDULE_DEADLOCK", "E3"},
  };
  for (const Bad& bad : bads) {
    Plan plan = TwoRanks();
    bad.change(plan);
    const absl::Status status = FrozenFlowOf(plan).status();
    EXPECT_EQ(ErrorReason(status), bad.reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

TEST(FrozenFlowTest, APieceThatBeginsWhereNoneEndsIsNamed) {
  Plan plan = TwoRanks();
  // Layers 0 and 1 of the last sample end apart, while piece 2 begins at layer 2 for all.
  plan.frozen[1].end_layer = 3;
  plan.frozen[2] = {.component = 0, .first_layer = 2, .end_layer = 3, .rank = 1, .first_sample = 0, .samples = 3};
  ASSERT_TRUE(FrozenFlowOf(plan).ok()) << FrozenFlowOf(plan).status();
  plan.frozen[0].samples = 2;
  plan.frozen[1].first_sample = 2, plan.frozen[1].samples = 2;
  plan.frozen[1].end_layer = 1;
  plan.frozen[2] = {.component = 0, .first_layer = 1, .end_layer = 3, .rank = 1, .first_sample = 2, .samples = 2};
  EXPECT_THAT(std::string(FrozenFlowOf(plan).status().message()), HasSubstr("layer 2"));
}

}  // namespace
}  // namespace atl::planner
