// For tests: the gradients of one step, by the pipeline and by one process with stock autograd.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "common/schedule/action.h"
#include "common/schedule/self_conditioning.h"
#include "worker/engine/engine.h"
#include "worker/trainer/batch_feed.h"
#include "worker/trainer/plain_dit_testing.h"
#include "worker/trainer/stage.h"
#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {

// Returns the plan with self-conditioned steps that run every C before any other action: stage by stage on a rank.
inline planner::Plan SelfConditioned(planner::Plan plan) {
  plan.self_conditioned = plan.schedule;
  for (std::vector<schedule::Action>& actions : plan.self_conditioned.ranks) {
    std::set<int32_t> stages;
    for (const schedule::Action& action : actions) {
      if (action.kind == schedule::ActionKind::kForward) stages.insert(action.stage);
    }
    std::vector<schedule::Action> estimates;
    for (const int32_t stage : stages) {
      for (int32_t m = 0; m < plan.schedule.micro_batches; ++m) {
        estimates.push_back({schedule::ActionKind::kSelfConditioning, stage, m});
      }
    }
    actions.insert(actions.begin(), estimates.begin(), estimates.end());
  }
  const absl::Status valid = schedule::Validate(plan.self_conditioned);
  EXPECT_TRUE(valid.ok()) << valid;
  return plan;
}

// Returns the plan with self-conditioned steps whose C's lie where the planner puts them at equal costs.
inline planner::Plan WithPlannedEstimates(planner::Plan plan) {
  schedule::SimulationCosts costs{.transfer_seconds = 0.1};
  costs.stages.assign(
      static_cast<size_t>(plan.schedule.stages),
      {.forward_seconds = 1, .input_gradient_seconds = 1, .weight_gradient_seconds = 1, .reduce_seconds = 0.1});
  plan.self_conditioned = schedule::AddSelfConditioning(plan.schedule, costs);
  return plan;
}

// Runs stock autograd over the same micro-batches: accumulates each replica's gradients apart, then adds them in
// replica order. If the plan has a self-conditioned schedule, every micro-batch's estimate is computed first.
inline Parameters PlainGradients(const TrainerOptions& options, const planner::Plan& plan, const Parameters& values,
                                 int64_t cursor = 32) {
  at::set_num_threads(1);
  Parameters gradients;
  for (int32_t replica = 0; replica < plan.replicas; ++replica) {
    const PlainDit dit(ConfigOf(options), values);
    StrokeData data(160, options.height, 5);
    BatchFeed feed(options, plan, replica, &data);
    feed.Begin(cursor);
    for (int32_t m = 0; m < plan.micro_batches; ++m) {
      const MicroBatch& batch = **feed.Get(m);
      const model::NoisedBatch& noised = batch.noised;
      at::Tensor estimate;
      if (plan.is_self_conditioned()) estimate = dit.Estimate(noised.x_t, noised.t, noised.classes);
      const at::Tensor out = dit.Run(noised.x_t, noised.t, noised.classes, estimate);
      const at::Tensor loss = options.objective == Objective::kVelocity ? at::mse_loss(out, batch.noised.target)
                                                                        : at::cross_entropy_loss(out, batch.clusters);
      (loss / (plan.micro_batches * plan.replicas)).backward();
    }
    for (const auto& [name, parameter] : dit.parameters()) {
      if (replica == 0) {
        gradients[name] = parameter.grad();
      } else {
        gradients[name].add_(parameter.grad());
      }
    }
  }
  return gradients;
}

// Runs one iteration of the engine on every rank of the island, self-conditioned if the plan has a schedule for it.
// Returns the gradients by replica.
inline std::vector<Parameters> PipelineGradients(const TrainerOptions& options, const planner::Plan& plan,
                                                 const Parameters& values) {
  std::vector<Parameters> by_rank(static_cast<size_t>(plan.rank_count()));
  OnEveryRank(plan, [&](int32_t rank, transport::Transport* transport) {
    at::set_num_threads(1);
    StrokeData data(160, options.height, 5);
    BatchFeed feed(options, plan, rank / plan.schedule.rank_count(), &data);
    RankStages stages(options, ConfigOf(options), plan, rank, &feed);
    for (const RankStages::Stage& stage : stages.stages()) {
      const at::NoGradGuard no_grad;
      for (const model::NamedTensor& p : model::NamedParameters(stage.layers)) p.tensor.copy_(values.at(p.name));
    }
    feed.Begin(32);
    stages.Begin();
    engine::Engine engine(plan, rank, &stages, transport, Clock::Real(), {.self_conditioning = &stages});
    const absl::Status status = engine.RunIteration({.self_conditioned = plan.is_self_conditioned()});
    ASSERT_TRUE(status.ok()) << status;
    for (const RankStages::Stage& stage : stages.stages()) {
      for (const model::NamedTensor& p : model::NamedParameters(stage.layers)) {
        by_rank[static_cast<size_t>(rank)][p.name] = p.tensor.grad();
      }
    }
  });
  std::vector<Parameters> by_replica(static_cast<size_t>(plan.replicas));
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    by_replica[rank / static_cast<size_t>(plan.schedule.rank_count())].merge(by_rank[rank]);
  }
  return by_replica;
}

inline void ExpectBitEqual(const Parameters& plain, const Parameters& pipeline) {
  ASSERT_EQ(plain.size(), pipeline.size());
  for (const auto& [name, gradient] : plain) {
    ASSERT_TRUE(gradient.defined()) << name;
    ASSERT_TRUE(pipeline.at(name).defined()) << name;
    EXPECT_GT(gradient.abs().max().item<float>(), 0) << name;
    EXPECT_TRUE(at::equal(gradient, pipeline.at(name)))
        << name << ": largest difference " << (gradient - pipeline.at(name)).abs().max().item<float>();
  }
}

// Expects that every replica's gradients equal the plain ones.
inline void ExpectPipelineEqualsPlain(const TrainerOptions& options, const planner::Plan& plan) {
  const Parameters values = RandomParameters(ConfigOf(options));
  const Parameters plain = PlainGradients(options, plan, values);
  for (const Parameters& of_replica : PipelineGradients(options, plan, values)) ExpectBitEqual(plain, of_replica);
}

// Returns a plan around any schedule: the layers spread over its stages; with replicas, a reduction behind each rank's
// line.
inline planner::Plan PlanAround(const TrainerOptions& options, const schedule::Schedule& schedule,
                                int32_t micro_batch_size, int32_t replicas = 1) {
  planner::Plan plan{.replicas = replicas,
                     .micro_batches = schedule.micro_batches,
                     .micro_batch_size = micro_batch_size,
                     .schedule = schedule,
                     .precision = options.training.precision};
  const int32_t layers = options.model.depth + 2;
  for (int32_t s = 0; s < schedule.stages; ++s) {
    plan.stages.push_back({.rank = schedule.rank_of_stage[static_cast<size_t>(s)],
                           .first_layer = layers * s / schedule.stages,
                           .end_layer = layers * (s + 1) / schedule.stages});
    if (replicas == 1) continue;
    plan.schedule.ranks[static_cast<size_t>(schedule.rank_of_stage[static_cast<size_t>(s)])].push_back(
        {schedule::ActionKind::kReduce, s, 0});
  }
  return plan;
}

inline std::vector<int32_t> AllLayers(const planner::Plan& plan) {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < plan.layer_count(); ++layer) layers.push_back(layer);
  return layers;
}

}  // namespace atl::trainer
