// The gradients of a pipelined step against one process with stock autograd: a DiT written here with nothing but ATen's
// own operations, accumulating the same micro-batches.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "common/model/dit.h"
#include "common/schedule/action.h"
#include "worker/engine/engine.h"
#include "worker/trainer/batch_feed.h"
#include "worker/trainer/plain_dit.h"
#include "worker/trainer/stage.h"
#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {
namespace {

Parameters PlainGradients(const TrainerOptions& options, const planner::Plan& plan, const Parameters& values) {
  at::set_num_threads(1);
  const PlainDit dit(ConfigOf(options), values);
  StrokeData data(160, options.height, 5);
  BatchFeed feed(options, plan.micro_batches, plan.micro_batch_size, &data);
  feed.Begin(32);
  for (int32_t m = 0; m < plan.micro_batches; ++m) {
    const MicroBatch& batch = **feed.Get(m);
    const at::Tensor out = dit.Run(batch.noised.x_t, batch.noised.t, batch.noised.classes);
    const at::Tensor loss = options.objective == Objective::kVelocity ? at::mse_loss(out, batch.noised.target)
                                                                      : at::cross_entropy_loss(out, batch.clusters);
    (loss / plan.micro_batches).backward();
  }
  Parameters gradients;
  for (const auto& [name, parameter] : dit.parameters()) gradients[name] = parameter.grad();
  return gradients;
}

Parameters PipelineGradients(const TrainerOptions& options, const planner::Plan& plan, const Parameters& values) {
  std::vector<Parameters> by_rank(static_cast<size_t>(plan.rank_count()));
  OnEveryRank(plan, [&](int32_t rank, transport::Transport* transport) {
    at::set_num_threads(1);
    StrokeData data(160, options.height, 5);
    BatchFeed feed(options, plan.micro_batches, plan.micro_batch_size, &data);
    RankStages stages(options, ConfigOf(options), plan, rank, &feed);
    for (const RankStages::Stage& stage : stages.stages()) {
      const at::NoGradGuard no_grad;
      for (const model::NamedTensor& p : model::NamedParameters(stage.layers)) p.tensor.copy_(values.at(p.name));
    }
    feed.Begin(32);
    stages.Begin();
    engine::Engine engine(plan.schedule, rank, &stages, transport, Clock::Real(), {});
    const absl::Status status = engine.RunIteration();
    ASSERT_TRUE(status.ok()) << status;
    for (const RankStages::Stage& stage : stages.stages()) {
      for (const model::NamedTensor& p : model::NamedParameters(stage.layers)) {
        by_rank[static_cast<size_t>(rank)][p.name] = p.tensor.grad();
      }
    }
  });
  Parameters gradients;
  for (Parameters& of_rank : by_rank) gradients.merge(of_rank);
  return gradients;
}

// Every B becomes an I, and its W comes `delay` actions later (as in zero-bubble schedules), in micro-batch order.
planner::Plan SplitBackward(planner::Plan plan, size_t delay) {
  using schedule::Action;
  using schedule::ActionKind;
  for (std::vector<Action>& actions : plan.schedule.ranks) {
    std::vector<Action> split;
    std::vector<std::pair<size_t, Action>> waiting;  // when due, W
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind == ActionKind::kBackward) {
        split.push_back({ActionKind::kInputGradient, actions[i].stage, actions[i].micro_batch});
        waiting.push_back({i + delay, {ActionKind::kWeightGradient, actions[i].stage, actions[i].micro_batch}});
      } else {
        split.push_back(actions[i]);
      }
      while (!waiting.empty() && waiting.front().first <= i) {
        split.push_back(waiting.front().second);
        waiting.erase(waiting.begin());
      }
    }
    for (const auto& [due, action] : waiting) split.push_back(action);
    actions = split;
  }
  const absl::Status valid = schedule::Validate(plan.schedule);
  EXPECT_TRUE(valid.ok()) << valid;
  return plan;
}

void ExpectBitEqual(const Parameters& plain, const Parameters& pipeline) {
  ASSERT_EQ(plain.size(), pipeline.size());
  for (const auto& [name, gradient] : plain) {
    ASSERT_TRUE(gradient.defined()) << name;
    ASSERT_TRUE(pipeline.at(name).defined()) << name;
    EXPECT_GT(gradient.abs().max().item<float>(), 0) << name;
    EXPECT_TRUE(at::equal(gradient, pipeline.at(name)))
        << name << ": largest difference " << (gradient - pipeline.at(name)).abs().max().item<float>();
  }
}

struct Case {
  int32_t stages;
  std::string schedule;
};

class PipelineEqualsPlainTest : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineEqualsPlainTest, GradientsAreEqualBitForBit) {
  const TrainerOptions options = SmallOptions();
  const planner::Plan plan = PlanFor(options, GetParam().stages, GetParam().schedule);
  const Parameters values = RandomParameters(ConfigOf(options));
  ExpectBitEqual(PlainGradients(options, plan, values), PipelineGradients(options, plan, values));
}

TEST_P(PipelineEqualsPlainTest, SplitBackwardsAreEqualBitForBit) {
  const TrainerOptions options = SmallOptions();
  const planner::Plan plan = PlanFor(options, GetParam().stages, GetParam().schedule);
  const Parameters values = RandomParameters(ConfigOf(options));
  const Parameters plain = PlainGradients(options, plan, values);
  for (const size_t delay : {size_t{0}, size_t{1}, size_t{3}, size_t{100}}) {
    ExpectBitEqual(plain, PipelineGradients(options, SplitBackward(plan, delay), values));
  }
}

TEST_P(PipelineEqualsPlainTest, RouterNetworksAreEqualBitForBit) {
  TrainerOptions options = SmallOptions();
  options.objective = Objective::kCluster;
  const planner::Plan plan = PlanFor(options, GetParam().stages, GetParam().schedule);
  const Parameters values = RandomParameters(ConfigOf(options));
  ExpectBitEqual(PlainGradients(options, plan, values), PipelineGradients(options, plan, values));
}

INSTANTIATE_TEST_SUITE_P(Stages, PipelineEqualsPlainTest,
                         ::testing::Values(Case{1, "gpipe"}, Case{1, "1f1b"}, Case{2, "gpipe"}, Case{2, "1f1b"},
                                           Case{4, "gpipe"}, Case{4, "1f1b"}),
                         [](const auto& info) {
                           return "Stages" + std::to_string(info.param.stages) +
                                  (info.param.schedule == "gpipe" ? "GPipe" : "OneForwardOneBackward");
                         });

// The width of the pipeline benchmark: other kernels than at width 32.
TEST(PipelineEqualsPlainWideTest, GradientsAreEqualBitForBit) {
  TrainerOptions options = SmallOptions();
  options.model = {.patch = 2, .width = 256, .depth = 2, .heads = 4, .mlp_ratio = 4.0};
  options.height = options.width = 16;
  const planner::Plan plan = PlanFor(options, 2, "1f1b", 2);
  const Parameters values = RandomParameters(ConfigOf(options));
  ExpectBitEqual(PlainGradients(options, plan, values), PipelineGradients(options, plan, values));
}

// Two stages on one rank: hops without a transport.
TEST(PipelineEqualsPlainHopTest, StagesOnOneRankAreEqualBitForBit) {
  const TrainerOptions options = SmallOptions();
  planner::Plan plan = PlanFor(options, 2, "gpipe");
  using schedule::ActionKind;
  plan.schedule.rank_of_stage = {0, 0};
  plan.schedule.ranks.assign(1, {});
  for (planner::StagePlacement& stage : plan.stages) stage.rank = 0;
  for (int32_t m = 0; m < plan.micro_batches; ++m) {
    for (const int32_t s : {0, 1}) plan.schedule.ranks[0].push_back({ActionKind::kForward, s, m});
    for (const int32_t s : {1, 0}) plan.schedule.ranks[0].push_back({ActionKind::kBackward, s, m});
  }
  const Parameters values = RandomParameters(ConfigOf(options));
  ExpectBitEqual(PlainGradients(options, plan, values), PipelineGradients(options, plan, values));
}

}  // namespace
}  // namespace atl::trainer
