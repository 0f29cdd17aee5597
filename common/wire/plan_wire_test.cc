#include "common/wire/plan_wire.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "common/base/errors.h"
#include "common/schedule/generators.h"
#include "common/schedule/self_conditioning.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::wire {
namespace {

planner::Plan TwoStages() {
  planner::Plan plan;
  plan.micro_batches = 4;
  plan.micro_batch_size = 16;
  plan.generator = "1f1b";
  plan.stages = {{.rank = 0, .first_layer = 0, .end_layer = 4}, {.rank = 1, .first_layer = 4, .end_layer = 8}};
  plan.schedule = schedule::Generate1F1B(2, 4).value();
  plan.schedule.ranks[1].push_back({schedule::ActionKind::kFrozen, 0, 0});
  plan.schedule.frozen_pieces = 1;
  plan.components = {{.layers = 2, .to_first_stage = true, .to_last_stage = true}};
  plan.frozen = {{.end_layer = 2, .rank = 1, .samples = 64}};
  plan.precision.compute = "bfloat16";
  plan.reason = "two ranks";
  return plan;
}

// Two pipelines side by side that compute some layers again, with their prediction.
planner::Plan TwoReplicas() {
  planner::Plan plan = TwoStages();
  plan.replicas = 2;
  for (int32_t stage = 0; stage < 2; ++stage) {
    plan.schedule.ranks[stage].push_back({schedule::ActionKind::kReduce, stage, 0});
  }
  plan.recomputed_layers = {1, 2, 6};
  plan.predicted = {.iteration_seconds = 0.25, .bubble = 0.125, .peak_bytes = {3e9, 2e9}};
  return plan;
}

// A plan whose model sees its own estimate in some steps.
planner::Plan SelfConditioned() {
  planner::Plan plan = TwoReplicas();
  plan.self_conditioned =
      schedule::AddSelfConditioning(plan.schedule, {.stages = {{}, {}}, .frozen = {{.seconds = 1}}});
  plan.predicted.self_conditioned_seconds = 0.375;
  return plan;
}

TEST(PlanWireTest, APlanSurvivesTheRoundTrip) {
  const auto back = FromProto(ToProto(TwoStages()));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, TwoStages());
  const auto replicas = FromProto(ToProto(TwoReplicas()));
  ASSERT_TRUE(replicas.ok()) << replicas.status();
  EXPECT_EQ(*replicas, TwoReplicas());
  EXPECT_FALSE(replicas->reads_frozen_cache);
  EXPECT_EQ(replicas->rank_count(), 4);
  EXPECT_FALSE(replicas->is_self_conditioned());
  const auto self_conditioned = FromProto(ToProto(SelfConditioned()));
  ASSERT_TRUE(self_conditioned.ok()) << self_conditioned.status();
  EXPECT_EQ(*self_conditioned, SelfConditioned());
  EXPECT_TRUE(self_conditioned->is_self_conditioned());
}

TEST(PlanWireTest, WhatDisagreesIsNamed) {
  using Proto = atlpb::plan::v1::Plan;
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const std::vector<std::pair<std::function<void(Proto&)>, std::string>> cases = {
      {[](Proto& p) { p.set_schedule("0F0,what\n"); }, "schedule"},
      {[](Proto& p) { p.set_schedule(""); }, "schedule"},
      {[](Proto& p) { p.set_ranks(3); }, "ranks"},
      {[](Proto& p) { p.set_micro_batches(5); }, "micro_batches"},
      {[](Proto& p) { p.set_micro_batch_size(0); }, "micro_batch_size"},
      {[](Proto& p) { p.set_micro_batch_size(1 << 30); }, "micro_batch_size"},
      {[](Proto& p) { p.mutable_stages()->RemoveLast(); }, "stages"},
      {[](Proto& p) { p.mutable_stages(1)->set_rank(0); }, "stages[1].rank"},
      {[](Proto& p) { p.mutable_stages(1)->set_first_layer(5); }, "stages[1].first_layer"},
      {[](Proto& p) { p.mutable_stages(0)->set_end_layer(0); }, "stages[0].end_layer"},
      {[](Proto& p) { p.add_recomputed_layers(8); }, "recomputed_layers[0]"},
      {[](Proto& p) { p.add_recomputed_layers(-1); }, "recomputed_layers[0]"},
      {[](Proto& p) { p.add_recomputed_layers(3), p.add_recomputed_layers(3); }, "recomputed_layers[1]"},
      {[](Proto& p) { p.mutable_components(0)->set_reads(kLeast); }, "components.reads"},
      {[](Proto& p) { p.mutable_components(0)->set_layers(0); }, "components[0].layers"},
      {[](Proto& p) { p.set_reads_frozen_cache(true); }, "components"},
      // As many layers as pieces say, and more than could be looked at.
      {[](Proto& p) { p.mutable_components(0)->set_layers(kMost), p.mutable_frozen(0)->set_end_layer(kMost); },
       "components[0].layers"},
      {[](Proto& p) { p.mutable_predicted()->set_bubble(std::nan("")); }, "predicted"},
      {[](Proto& p) { p.mutable_predicted()->add_peak_bytes(HUGE_VAL); }, "predicted"},
  };
  for (const auto& [change, field] : cases) {
    Proto proto = ToProto(TwoStages());
    change(proto);
    const auto plan = FromProto(proto);
    ASSERT_FALSE(plan.ok()) << field;
    EXPECT_EQ(ErrorField(plan.status()), field) << plan.status();
  }
}

TEST(PlanWireTest, ASecondScheduleThatIsNotTheFirstAndCsIsNamed) {
  const auto text = [](const schedule::Schedule& schedule) { return schedule::ToText(schedule); };
  schedule::SimulationCosts costs{.stages = {{}, {}, {}}};
  const schedule::Schedule three_stages = schedule::AddSelfConditioning(*schedule::Generate1F1B(3, 4), costs);
  costs.stages.pop_back();
  const schedule::Schedule five_micro_batches = schedule::AddSelfConditioning(*schedule::Generate1F1B(2, 5), costs);
  const schedule::Schedule no_pieces = schedule::AddSelfConditioning(*schedule::Generate1F1B(2, 4), costs);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"0C0,what\n", "self_conditioned_schedule: schedule: rank 0, position 1: expected <stage>"},
      {text(three_stages), "expected the schedule's 2 ranks, found 3"},
      {text(five_micro_batches), "expected the schedule's 4 micro-batches, found 5"},
      {text(no_pieces), "expected the schedule's 1 frozen pieces, found 0"},
      {text(TwoStages().schedule), "expected a C of every stage and micro-batch, found none"},
  };
  for (const auto& [schedule, message] : cases) {
    atlpb::plan::v1::Plan proto = ToProto(TwoStages());
    proto.set_self_conditioned_schedule(schedule);
    const absl::Status status = FromProto(proto).status();
    EXPECT_EQ(ErrorField(status), "self_conditioned_schedule") << status;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(message));
  }
  // A C is missing: refused by what validates both, where there are pieces.
  planner::Plan plan = SelfConditioned();
  auto& rank = plan.self_conditioned.ranks[0];
  rank.erase(std::find(rank.begin(), rank.end(), schedule::Action{schedule::ActionKind::kSelfConditioning, 0, 2}));
  EXPECT_EQ(ErrorReason(FromProto(ToProto(plan)).status()), "SCHEDULE_INCOMPLETE");
}

TEST(PlanWireTest, PiecesThatDoNotFitTogetherAreRefused) {
  atlpb::plan::v1::Plan proto = ToProto(TwoStages());
  proto.mutable_frozen(0)->set_samples(63);
  EXPECT_EQ(ErrorReason(FromProto(proto).status()), "FROZEN_PIECES");
}

}  // namespace
}  // namespace atl::wire
