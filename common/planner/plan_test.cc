#include "common/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

using ::testing::HasSubstr;

PlanRequest Digits(int32_t ranks) {
  PlanRequest request;
  request.batch_size = 64;
  request.ranks = ranks;
  request.profile = CountedProfile(spec::ModelSpec{}, /*tokens=*/16, /*channels=*/1);
  return request;
}

TEST(MakePlan, EveryStageCountAndScheduleGivesAValidPlan) {
  for (const auto& [name, stages_per_rank, splits] : schedule::Generators()) {
    for (int32_t ranks = 1; ranks * stages_per_rank <= 8; ++ranks) {
      PlanRequest request = Digits(ranks);
      request.pipeline.schedule = name;
      const auto plan = MakePlan(request);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_TRUE(schedule::Validate(plan->schedule).ok());
      EXPECT_EQ(plan->rank_count(), ranks);
      EXPECT_EQ(plan->stages.size(), static_cast<size_t>(ranks) * stages_per_rank);
      for (size_t stage = 0; stage < plan->stages.size(); ++stage) {
        EXPECT_EQ(plan->stages[stage].rank, plan->schedule.rank_of_stage[stage]);
      }
      EXPECT_EQ(plan->layer_count(), 8);
      EXPECT_EQ(plan->micro_batches, 4);
      EXPECT_EQ(plan->micro_batch_size, 16);
      EXPECT_EQ(plan->generator, name);
    }
  }
}

TEST(MakePlan, TwoStagesOfADiTHoldAsManyBlocksEach) {
  const Plan plan = *MakePlan(Digits(2));
  EXPECT_EQ(plan.stages[0].end_layer, 4);  // the embedding and three of six blocks
}

TEST(MakePlan, RanksBeyondTheLayersStayIdle) {
  EXPECT_EQ(MakePlan(Digits(20))->rank_count(), 8);
}

TEST(MakePlan, StagesBelowTheRanksUseOnlySoManyRanks) {
  PlanRequest request = Digits(4);
  request.pipeline.stages = 3;
  EXPECT_EQ(MakePlan(request)->rank_count(), 3);
  request.pipeline = {.schedule = "zbv", .stages = 6};
  EXPECT_EQ(MakePlan(request)->rank_count(), 3);
}

TEST(MakePlan, SeveralStagesPerRankUseOnlyAsManyRanksAsLayersAllow) {
  PlanRequest request = Digits(8);
  request.pipeline.schedule = "v-min";
  EXPECT_EQ(MakePlan(request)->rank_count(), 4);
  EXPECT_EQ(MakePlan(request)->stages.size(), 8u);
}

TEST(MakePlan, TheSameRequestGivesTheSamePlan) {
  EXPECT_EQ(*MakePlan(Digits(3)), *MakePlan(Digits(3)));
}

TEST(MakePlan, TheReasonNamesTheSplitAndItsBubble) {
  EXPECT_THAT(
      MakePlan(Digits(2))->reason,
      HasSubstr("8 layers on 2 of 2 ranks as 4+4 layers per stage; 1f1b of 4 micro-batches of 16; predicted bubble"));
}

TEST(MakePlan, TheReasonSpeaksOfOneAsOneDoes) {
  PlanRequest request = Digits(1);
  request.pipeline.micro_batches = 1;
  request.pipeline.recompute = "always";
  const auto plan = MakePlan(request);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->reason, HasSubstr("8 layers on 1 of 1 rank as 8 layers per stage; 1f1b of 1 micro-batch of 64; "));
  EXPECT_THAT(plan->reason, HasSubstr("layers are computed again as asked for"));
}

struct BadRequest {
  void (*change)(PlanRequest*);
  const char* field;
  const char* message;
};

TEST(MakePlan, RefusesWithTheField) {
  const BadRequest cases[] = {
      {[](PlanRequest* r) { r->pipeline.stages = 3; }, "pipeline.stages", "expected 0 (1 per rank) to 2"},
      {[](PlanRequest* r) { r->pipeline.stages = 9, r->ranks = 9; }, "pipeline.stages", "expected 1 to 8"},
      {[](PlanRequest* r) { r->pipeline.stages = -1; }, "pipeline.stages", "found -1"},
      {[](PlanRequest* r) { r->pipeline.micro_batches = 5; }, "pipeline.micro_batches",
       "divisor of the batch of 64, found 5"},
      {[](PlanRequest* r) { r->pipeline.micro_batches = -1; }, "pipeline.micro_batches", "found -1"},
      {[](PlanRequest* r) { r->pipeline.replicas = 3; }, "pipeline.replicas", "expected 0 (the planner's choice) to 2"},
      {[](PlanRequest* r) { r->pipeline.schedule = "zb"; }, "pipeline.schedule",
       "expected one of 1f1b, gpipe, interleaved-1f1b, zb-h1, zb-h2, zbv, v-half, v-min, found 'zb'"},
      {[](PlanRequest* r) { r->pipeline = {.schedule = "zbv", .stages = 3}; }, "pipeline.stages",
       "expected a multiple of the 2 stages that zbv puts on every rank, found 3"},
      {[](PlanRequest* r) { r->pipeline = {.schedule = "zbv", .stages = 6}; }, "pipeline.stages",
       "expected 0 (2 per rank) to 4"},
      {[](PlanRequest* r) { r->pipeline = {.stages = 2, .replicas = 2}; }, "pipeline.stages",
       "expected 0 (1 per rank) to 1 (the ranks of the island over 2 replicas, 1 stages each), found 2"},
      {[](PlanRequest* r) { r->pipeline = {.schedule = "zbv", .stages = 4, .replicas = 2}; }, "pipeline.stages",
       "to 2 (the ranks of the island over 2 replicas, 2 stages each), found 4"},
      {[](PlanRequest* r) { r->ranks = 4, r->pipeline = {.schedule = "auto", .stages = 4, .replicas = 4}; },
       "pipeline.stages", "to 1 (the ranks of the island over 4 replicas, 1 stages each), found 4"},
      {[](PlanRequest* r) { r->self_conditioning_rate = 1.25; }, "training.self_conditioning_rate", "found 1.25"},
      {[](PlanRequest* r) { r->ranks = 0; }, "ranks", "found 0"},
      {[](PlanRequest* r) { r->profile.layers.clear(); }, "", "expected the costs of at least one layer"},
  };
  for (const BadRequest& bad : cases) {
    PlanRequest request = Digits(2);
    bad.change(&request);
    const auto plan = MakePlan(request);
    ASSERT_FALSE(plan.ok()) << bad.message;
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorField(plan.status()), bad.field);
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(bad.message));
  }
}

}  // namespace
}  // namespace atl::planner
