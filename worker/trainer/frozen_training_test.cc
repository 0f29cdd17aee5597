// Training on the outputs of frozen components: in the bubbles, on several ranks, over parts of the batch, and resumed.
#include <torch/csrc/jit/api/module.h>

#include <sstream>

#include "common/base/errors.h"
#include "common/model/dit.h"
#include "common/model/testing.h"
#include "common/planner/frozen_flow.h"
#include "gmock/gmock.h"
#include "worker/trainer/batch_feed.h"
#include "worker/trainer/frozen_testing.h"
#include "worker/trainer/gradient_testing.h"
#include "worker/trainer/rank_frozen.h"
#include "worker/trainer/trainer.h"
#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {
namespace {

using ::testing::HasSubstr;

planner::Plan LatentPlan(const TrainerOptions& options, int32_t stages) {
  planner::Plan plan = PlanFor(options, stages);
  plan.components = planner::ComponentsOf(options.frozen);
  return plan;
}

// Pieces of several shapes, whatever the ranks: (component, layers, samples). `rank_of` says where each lies.
void AddPieces(planner::Plan* plan, const std::function<int32_t(int32_t)>& rank_of) {
  plan->frozen = {{.component = 0, .first_layer = 0, .end_layer = 1, .first_sample = 0, .samples = 16},
                  {.component = 0, .first_layer = 1, .end_layer = 2, .first_sample = 0, .samples = 5},
                  {.component = 0, .first_layer = 1, .end_layer = 2, .first_sample = 5, .samples = 11},
                  {.component = 1, .first_layer = 0, .end_layer = 2, .first_sample = 0, .samples = 8},
                  {.component = 1, .first_layer = 0, .end_layer = 2, .first_sample = 8, .samples = 8},
                  {.component = 1, .first_layer = 2, .end_layer = 3, .first_sample = 0, .samples = 3},
                  {.component = 1, .first_layer = 2, .end_layer = 3, .first_sample = 3, .samples = 13},
                  {.component = 2, .first_layer = 0, .end_layer = 2, .first_sample = 0, .samples = 16}};
  plan->schedule.frozen_pieces = static_cast<int32_t>(plan->frozen.size());
  for (int32_t p = 0; p < plan->schedule.frozen_pieces; ++p) plan->frozen[static_cast<size_t>(p)].rank = rank_of(p);
}

// Piece p lies on rank p mod ranks, between the actions; the last two after the flush.
planner::Plan Filled(const TrainerOptions& options, int32_t stages) {
  planner::Plan plan = LatentPlan(options, stages);
  AddPieces(&plan, [stages](int32_t p) { return p % stages; });
  for (int32_t p = 0; p < plan.schedule.frozen_pieces; ++p) {
    auto& actions = plan.schedule.ranks[static_cast<size_t>(p % stages)];
    const size_t at = p < 6 ? std::min(actions.size(), static_cast<size_t>(1 + p)) : actions.size();
    actions.insert(actions.begin() + static_cast<ptrdiff_t>(at), {schedule::ActionKind::kFrozen, 0, p});
  }
  const auto flow = planner::FrozenFlowOf(plan);
  EXPECT_TRUE(flow.ok()) << flow.status();
  return plan;
}

// The same pieces, one after another after the flush, on the last rank.
planner::Plan OneAfterAnother(const TrainerOptions& options, int32_t stages) {
  planner::Plan plan = LatentPlan(options, stages);
  AddPieces(&plan, [stages](int32_t) { return stages - 1; });
  for (int32_t p = 0; p < plan.schedule.frozen_pieces; ++p) {
    plan.schedule.ranks.back().push_back({schedule::ActionKind::kFrozen, 0, p});
  }
  return plan;
}

TEST(FrozenTrainingTest, FilledBubblesEqualTheSamePiecesOneAfterAnotherBitForBit) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  const Trained expected = Train(options, OneAfterAnother(options, 1), 5, &store);
  for (const int32_t stages : {1, 2, 4}) {
    SCOPED_TRACE(stages);
    const Trained filled = Train(options, Filled(options, stages), 5, &store);
    ExpectSameState(expected, filled);
    ASSERT_EQ(filled.results.size(), 5U);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(filled.results[i].loss, expected.results[i].loss);
  }
  ExpectSameState(expected, Train(options, OneAfterAnother(options, 2), 5, &store));
}

TEST(FrozenTrainingTest, SelfConditionedStepsEstimateTheLatents) {
  storage::TemporaryStore store;
  TrainerOptions options = LatentOptions();
  options.model.self_conditioning = true;
  const Trained expected = Train(options, SelfConditioned(OneAfterAnother(options, 1)), 6, &store);
  options.training.self_conditioning_rate = 0;
  EXPECT_NE(Train(options, OneAfterAnother(options, 1), 6, &store).results[5].loss, expected.results[5].loss);
  options.training.self_conditioning_rate = 0.5;
  for (const int32_t stages : {1, 2, 4}) {
    SCOPED_TRACE(stages);
    const Trained filled = Train(options, SelfConditioned(Filled(options, stages)), 6, &store);
    ExpectSameState(expected, filled);
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(filled.results[i].loss, expected.results[i].loss);
    const Trained half = Train(options, SelfConditioned(Filled(options, stages)), 3, &store);
    ExpectSameState(expected, Train(options, SelfConditioned(Filled(options, stages)), 6, &store, &half));
  }
}

TEST(FrozenTrainingTest, AResumedRunMakesItsOutputsAgainBitForBit) {
  storage::TemporaryStore store;
  const TrainerOptions options = LatentOptions();
  for (const int32_t stages : {1, 2}) {
    const planner::Plan plan = Filled(options, stages);
    const Trained whole = Train(options, plan, 8, &store);
    const Trained half = Train(options, plan, 3, &store);
    ExpectSameState(whole, Train(options, plan, 8, &store, &half));
  }
}

TEST(FrozenTrainingTest, WorkAheadIsForTheBatchesThatAreNotLeftOut) {
  storage::TemporaryStore store;
  TrainerOptions options = LatentOptions();
  const Trained before = Train(options, Filled(options, 2), 3, &store);
  options.skipped = {{4, 2}, {7, 1}};
  const Trained expected = Train(options, OneAfterAnother(options, 1), 8, &store);
  ExpectSameState(expected, Train(options, Filled(options, 2), 8, &store));
  ExpectSameState(expected, Train(options, Filled(options, 2), 8, &store, &before));
}

TEST(FrozenTrainingTest, TheLastStepOfARunPreparesNothing) {
  storage::TemporaryStore store;
  TrainerOptions options = LatentOptions();
  options.training.steps = 3;
  options.training.warmup_steps = 1;
  ExpectSameState(Train(options, OneAfterAnother(options, 1), 3, &store),
                  Train(options, Filled(options, 2), 3, &store));
}

// Only how many they are matters to a batch's pieces.
Samples SamplesOf(size_t n) {
  Samples samples;
  samples.positions.resize(n);
  return samples;
}

// Latents and conditions of the first batch, by a plan of one rank.
std::pair<at::Tensor, at::Tensor> Outputs(const TrainerOptions& options, const planner::Plan& plan) {
  StrokeData data(160, options.height, 5);
  auto frozen = RankFrozen::Create(options, plan, 0, &data);
  EXPECT_TRUE(frozen.ok()) << frozen.status();
  (*frozen)->Prepare(16);
  for (const schedule::Action& action : plan.schedule.ranks[0]) {
    if (action.kind != schedule::ActionKind::kFrozen) continue;
    const absl::Status status = (*frozen)->Run(action.micro_batch);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_FALSE((*frozen)->Holds(16));
  (*frozen)->Advance();
  EXPECT_TRUE((*frozen)->Holds(16));
  const Samples samples = SamplesOf(16);
  return {*(*frozen)->Latents(0, samples), *(*frozen)->Conditions(0, samples)};
}

TEST(FrozenTrainingTest, PartsOfTheBatchEqualTheWholeWithinRounding) {
  const TrainerOptions options = LatentOptions();
  planner::Plan whole = LatentPlan(options, 1);
  planner::AppendPieces(&whole);
  const auto [latents, conditions] = Outputs(options, whole);
  const auto [part_latents, part_conditions] = Outputs(options, Filled(options, 1));
  EXPECT_EQ(latents.sizes(), at::IntArrayRef({16, 2, 4, 4}));
  EXPECT_EQ(conditions.sizes(), at::IntArrayRef({16, 32}));
  EXPECT_GT(latents.std().item<float>(), 0.05);
  EXPECT_TRUE(model::IsNear(part_latents, latents));
  EXPECT_TRUE(model::IsNear(part_conditions, conditions));
}

TEST(FrozenTrainingTest, TheModelLearnsTheLatentsUnderTheirConditions) {
  const TrainerOptions options = LatentOptions();
  planner::Plan plan = LatentPlan(options, 1);
  planner::AppendPieces(&plan);
  StrokeData data(160, options.height, 5);
  auto frozen = RankFrozen::Create(options, plan, 0, &data);
  ASSERT_TRUE(frozen.ok()) << frozen.status();
  (*frozen)->Prepare(0);
  for (int32_t p = 0; p < 3; ++p) ASSERT_TRUE((*frozen)->Run(p).ok());
  (*frozen)->Advance();
  BatchFeed feed(options, plan, 0, &data, frozen->get());
  feed.Begin(0);
  const auto batch = feed.Get(1);
  ASSERT_TRUE(batch.ok()) << batch.status();
  // x_t = (1 - t) x0 + t eps and target = eps - x0, so x0 = x_t - t target.
  const at::Tensor t = (*batch)->noised.t.view({-1, 1, 1, 1});
  EXPECT_TRUE(model::IsNear((*batch)->noised.x_t - t * (*batch)->noised.target, *(*frozen)->Latents(4, SamplesOf(4))));
  EXPECT_TRUE(at::equal((*batch)->condition, *(*frozen)->Conditions(4, SamplesOf(4))));
  // The condition reaches the conditioning.
  const model::LayerList embed =
      model::BuildLayers({.channels = 2, .height = 4, .width_pixels = 4, .classes = 5, .width = 32}, 3, 0, 1);
  const model::Flow flow{{"x", (*batch)->noised.x_t}, {"t", (*batch)->noised.t}, {"class", (*batch)->noised.classes}};
  model::Flow with = flow;
  with.push_back({"condition", (*batch)->condition});
  EXPECT_FALSE(
      at::equal(model::Get(model::RunLayers(embed, flow), "c"), model::Get(model::RunLayers(embed, with), "c")));
}

TEST(FrozenTrainingTest, DroppedClassesReachComponentsAsTheNullClass) {
  TrainerOptions options = LatentOptions();
  options.training.class_dropout = 1.0;
  planner::Plan plan = LatentPlan(options, 1);
  planner::AppendPieces(&plan);
  const at::Tensor conditions = Outputs(options, plan).second;
  for (int64_t i = 1; i < 16; ++i) EXPECT_TRUE(model::IsNear(conditions[i], conditions[0]));
}

TrainerOptions Unfrozen(TrainerOptions options) {
  options.frozen.clear();
  return options;
}

TEST(FrozenTrainingTest, WhatDoesNotFitIsRefusedBeforeTraining) {
  StrokeData data(160, 8, 5);
  const auto create = [&data](const TrainerOptions& options, const planner::Plan& plan) {
    return Trainer::Create(options, plan, 0, &data, nullptr, Clock::Real()).status();
  };
  TrainerOptions options = LatentOptions();
  EXPECT_EQ(ErrorReason(create(options, PlanFor(options, 1))), "PLAN_INVALID");  // components, and no pieces of them
  EXPECT_EQ(ErrorReason(create(options, LatentPlan(options, 1))), "FROZEN_PIECES");
  EXPECT_EQ(ErrorReason(create(Unfrozen(options), Filled(options, 1))), "PLAN_INVALID");
  // A file whose output is of another shape than the job says.
  torch::jit::Module module("layer");
  module.define("def forward(self, x):\n  return x\n");
  std::ostringstream file;
  module.save(file);
  options.frozen = {{.name = "encoder", .output = "latent", .torchscript = {"file:///e.pt"}, .shape = {2, 4, 4}}};
  options.frozen_files = std::make_shared<const std::map<std::string, std::string>>(
      std::map<std::string, std::string>{{"file:///e.pt", file.str()}});
  planner::Plan plan = LatentPlan(options, 1);
  planner::AppendPieces(&plan);
  const absl::Status status = create(options, plan);
  EXPECT_EQ(ErrorReason(status), "FROZEN_SHAPE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("file:///e.pt"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("[2, 4, 4] per sample"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("found float32 [1, 8, 8]"));
}

}  // namespace
}  // namespace atl::trainer
