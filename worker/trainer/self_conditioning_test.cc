// Training of self-conditioned models: whole steps against one process with stock autograd, the coin, resuming, and
// that the model makes use of its estimate.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/model/weights.h"
#include "common/schedule/generators.h"
#include "worker/trainer/gradient_testing.h"
#include "worker/trainer/optimizer.h"

namespace atl::trainer {
namespace {

constexpr int64_t kSteps = 6;

// A model as small as eight stages allow.
TrainerOptions TinyOptions() {
  TrainerOptions options = SmallOptions();
  options.model = {.patch = 4, .width = 16, .depth = 6, .heads = 2, .mlp_ratio = 2.0};
  options.model.self_conditioning = true;
  options.training.warmup_steps = 1;
  options.training.learning_rate = 3e-3;
  return options;
}

bool Coin(const TrainerOptions& options, int64_t step) {
  return CounterRandom(options.seed, RandomPurpose::kSelfConditioning, static_cast<uint64_t>(step), 0).Uniform() <
         options.training.self_conditioning_rate;
}

TEST(SelfConditionedTrainingTest, TheStepsOfTheseTestsTakeBothSidesOfTheCoin) {
  std::set<bool> sides;
  for (int64_t step = 0; step < kSteps; ++step) sides.insert(Coin(TinyOptions(), step));
  EXPECT_EQ(sides.size(), 2U);
}

// The state after kSteps of one process: stock autograd over the plain model, and the trainer's optimizer.
std::map<std::string, std::string> TrainPlain(const TrainerOptions& options, const planner::Plan& plan) {
  at::set_num_threads(1);
  const model::DitConfig config = ConfigOf(options);
  Parameters initial;
  std::vector<std::vector<std::string>> layers;
  for (const auto& layer : model::BuildLayers(config, options.seed, 0, model::LayerCount(config))) {
    layers.emplace_back();
    for (const model::NamedTensor& parameter : layer->parameters()) {
      initial[layer->name() + "." + parameter.name] = parameter.tensor;
      layers.back().push_back(layer->name() + "." + parameter.name);
    }
  }
  const PlainDit weights(config, initial);
  std::vector<model::NamedTensor> in_order;
  for (const auto& layer : layers) {
    for (const std::string& name : layer) in_order.push_back({name, weights.parameters().at(name)});
  }
  Optimizer optimizer(in_order, options.training);
  for (int64_t step = 0; step < kSteps; ++step) {
    planner::Plan of_step = plan;
    if (!Coin(options, step)) of_step.self_conditioned = {};
    const Parameters gradients = PlainGradients(options, of_step, weights.parameters(), step * plan.batch_size());
    for (const model::NamedTensor& parameter : in_order) {
      parameter.tensor.mutable_grad() = gradients.at(parameter.name);
    }
    const std::vector<at::Tensor> norms = optimizer.GradientNorms();
    double sum = 0;
    size_t i = 0;
    for (const auto& layer : layers) {
      double squares = 0;
      for (size_t p = 0; p < layer.size(); ++p) {
        const auto norm = norms[i++].item<double>();
        squares += norm * norm;
      }
      sum += squares;
    }
    const double limit = options.training.clip_norm;
    optimizer.Step(step, limit > 0 && std::sqrt(sum) > limit ? limit / std::sqrt(sum) : 1.0);
  }
  std::map<std::string, std::string> state;
  for (size_t i = 0; i < optimizer.size(); ++i) {
    for (const model::NamedTensor& tensor : optimizer.State(i)) {
      state[tensor.name] = std::string(model::ToView(tensor.name, tensor.tensor.contiguous()).bytes);
    }
  }
  return state;
}

class EveryScheduleTrainsAsPlainTest : public ::testing::TestWithParam<std::tuple<std::string, int32_t>> {};

TEST_P(EveryScheduleTrainsAsPlainTest, OverBothSidesOfTheCoin) {
  static auto* const plain = new std::map<int32_t, std::map<std::string, std::string>>;  // by replicas
  storage::TemporaryStore store;
  TrainerOptions options = TinyOptions();
  const auto& [name, ranks] = GetParam();
  const schedule::Schedule schedule = *schedule::Generate(name, ranks, /*micro_batches=*/3);
  for (const int32_t replicas : {1, 2}) {
    planner::Plan plan = SelfConditioned(PlanAround(options, schedule, 2, replicas));
    options.training.batch_size = plan.batch_size();
    std::map<std::string, std::string>& expected = (*plain)[replicas];
    if (expected.empty()) expected = TrainPlain(options, plan);
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(fmt::format("{} replicas, recompute {}", replicas, recompute));
      if (recompute) {
        plan.recomputed_layers = AllLayers(plan);
        plan = WithPlannedEstimates(plan);
      }
      const Trained trained = Train(options, plan, kSteps, &store);
      ASSERT_EQ(trained.state.size(), expected.size());
      for (const auto& [tensor, bytes] : expected) EXPECT_TRUE(trained.state.at(tensor) == bytes) << tensor;
    }
  }
}

std::vector<std::string> Names() {
  const std::vector<std::string_view> names = schedule::GeneratorNames();
  return {names.begin(), names.end()};
}

INSTANTIATE_TEST_SUITE_P(Matrix, EveryScheduleTrainsAsPlainTest,
                         ::testing::Combine(::testing::ValuesIn(Names()), ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "On" + std::to_string(std::get<1>(info.param));
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

planner::Plan TwoStages(const TrainerOptions& options) {
  return SelfConditioned(PlanAround(options, *schedule::Generate1F1B(2, 4), 4));
}

TEST(SelfConditionedTrainingTest, ResumingAtAnyStepTossesTheSameCoins) {
  storage::TemporaryStore store;
  const TrainerOptions options = TinyOptions();
  const planner::Plan plan = TwoStages(options);
  const planner::Plan other = SelfConditioned(PlanAround(options, *schedule::Generate("v-half", 2, 4), 4));
  const Trained whole = Train(options, plan, kSteps, &store);
  for (int64_t step = 1; step < kSteps; ++step) {
    SCOPED_TRACE(step);
    const Trained part = Train(options, plan, step, &store);
    ExpectSameState(whole, Train(options, plan, kSteps, &store, &part));
    ExpectSameState(whole, Train(options, other, kSteps, &store, &part));
  }
}

TEST(SelfConditionedTrainingTest, TheRateIsTheShareOfStepsWithAnEstimate) {
  TrainerOptions options = TinyOptions();
  const planner::Plan plan = SelfConditioned(PlanAround(options, *schedule::Generate1F1B(1, 4), 4));
  for (const double rate : {0.0, 0.3, 1.0}) {
    options.training.self_conditioning_rate = rate;
    StrokeData data(160, options.height, 5);
    auto trainer = Trainer::Create(options, plan, 0, &data, nullptr, Clock::Real());
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    int estimated = 0;
    int expected = 0;
    for (int64_t step = 0; step < 20; ++step) {
      ASSERT_TRUE((*trainer)->Step().ok());
      expected += Coin(options, step) ? 1 : 0;
      const auto& timings = (*trainer)->timings();
      const auto runs = std::count_if(timings.begin(), timings.end(), [](const engine::ActionTiming& timing) {
        return timing.action.kind == schedule::ActionKind::kSelfConditioning;
      });
      EXPECT_TRUE(runs == 0 || runs == plan.micro_batches) << runs;
      estimated += runs > 0 ? 1 : 0;
    }
    EXPECT_EQ(estimated, expected);
    EXPECT_EQ(estimated == 0, rate == 0);
    EXPECT_EQ(estimated == 20, rate == 1);
  }
}

TEST(SelfConditionedTrainingTest, ARateOfZeroNeedsNoSecondScheduleAndTrainsOnZeros) {
  storage::TemporaryStore store;
  TrainerOptions options = TinyOptions();
  options.training.self_conditioning_rate = 0;
  const planner::Plan with = TwoStages(options);
  planner::Plan without = with;
  without.self_conditioned = {};
  const Trained zeros = Train(options, without, 4, &store);
  ExpectSameState(zeros, Train(options, with, 4, &store));
  options.training.self_conditioning_rate = 1;
  const Trained estimates = Train(options, with, 4, &store);
  EXPECT_NE(zeros.state.at("weights/embed.patch.weight"), estimates.state.at("weights/embed.patch.weight"));
}

TEST(SelfConditionedTrainingTest, Bfloat16IsTheSameOnAnyStageCount) {
  storage::TemporaryStore store;
  TrainerOptions options = TinyOptions();
  options.training.precision.compute = "bfloat16";
  options.training.self_conditioning_rate = 1;
  const Trained one = Train(options, SelfConditioned(PlanAround(options, *schedule::Generate1F1B(1, 4), 4)), 4, &store);
  ExpectSameState(one, Train(options, TwoStages(options), 4, &store));
}

// The mean loss of a trained model on batches that it has not seen, given `estimate_of` (batch, its own estimate).
double LossGiven(const TrainerOptions& options, const model::LayerList& layers, auto estimate_of) {
  const at::NoGradGuard no_grad;
  const planner::Plan plan = PlanAround(options, *schedule::Generate1F1B(1, 4), 16);
  StrokeData data(160, options.height, 5);
  BatchFeed feed(options, plan, 0, &data);
  feed.Begin(1'000'000);
  double sum = 0;
  for (int32_t m = 0; m < plan.micro_batches; ++m) {
    const model::NoisedBatch& batch = (*feed.Get(m))->noised;
    const at::Tensor velocity = model::RunModel(layers, batch.x_t, batch.t, batch.classes);
    const at::Tensor estimate = estimate_of(model::EstimateOf(batch.x_t, batch.t, velocity));
    const at::Tensor given = model::RunModel(layers, batch.x_t, batch.t, batch.classes, estimate);
    sum += model::FlowMatchingLoss(given, batch.target).item<double>() / plan.micro_batches;
  }
  return sum;
}

TEST(SelfConditionedTrainingTest, ATrainedModelMakesUseOfItsOwnEstimate) {
  storage::TemporaryStore store;
  TrainerOptions options = SmallOptions();
  options.model.self_conditioning = true;
  options.model.depth = 2;
  options.training.steps = 250;
  options.training.learning_rate = 3e-3;
  const planner::Plan plan = SelfConditioned(PlanAround(options, *schedule::Generate1F1B(1, 2), 8));
  const Trained trained = Train(options, plan, options.training.steps, &store);
  const auto reader = storage::CheckpointReader::Open(store.get(), trained.manifest_uri, trained.manifest_sha256);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const model::LayerList layers =
      model::BuildLayers(ConfigOf(options), options.seed, 0, model::LayerCount(ConfigOf(options)));
  const absl::Status loaded = model::LoadParameters(layers, reader->tensors(), "ema/");
  ASSERT_TRUE(loaded.ok()) << loaded;
  const double none = LossGiven(options, layers, [](const at::Tensor& own) { return at::zeros_like(own); });
  const double own = LossGiven(options, layers, [](const at::Tensor& own) { return own; });
  const double another = LossGiven(options, layers, [](const at::Tensor& own) { return own.roll(1, 0); });
  std::fprintf(stderr, "loss with no estimate %.4f, with its own %.4f, with another sample's %.4f\n", none, own,
               another);
  EXPECT_LT(own, 1.02 * none);
  EXPECT_GT(another, 1.05 * own);
}

TEST(SelfConditionedTrainingTest, APlanThatDoesNotFitIsRefused) {
  const TrainerOptions options = TinyOptions();
  StrokeData data(160, options.height, 5);
  const auto create = [&](auto change) {
    planner::Plan plan = SelfConditioned(PlanAround(options, *schedule::Generate1F1B(1, 2), 4));
    change(plan);
    return Trainer::Create(options, plan, 0, &data, nullptr, Clock::Real()).status();
  };
  EXPECT_TRUE(create([](auto&) {}).ok());
  const absl::Status none = create([](auto& p) { p.self_conditioned = {}; });
  EXPECT_EQ(ErrorReason(none), "PLAN_INVALID");
  EXPECT_NE(none.message().find("expected a schedule for self-conditioned steps; found none"), std::string::npos);
  EXPECT_EQ(ErrorReason(create([](auto& p) { p.self_conditioned = p.schedule; })), "SCHEDULE_MISMATCH");  // no C
  EXPECT_EQ(ErrorReason(create([](auto& p) {
              p.self_conditioned = *schedule::ParseText("0C0,0C1,0F0,0F1,0B0,0B1");  // another order than 1F1B
            })),
            "SCHEDULE_MISMATCH");
  EXPECT_FALSE(create([](auto& p) { p.self_conditioned.ranks[0].erase(p.self_conditioned.ranks[0].begin()); }).ok());
}

TEST(SelfConditionedTrainingTest, ARouterNetworkSeesNoEstimate) {
  TrainerOptions options = TinyOptions();
  options.objective = Objective::kCluster;
  StrokeData data(160, options.height, 5);
  const planner::Plan plan = SelfConditioned(PlanAround(options, *schedule::Generate1F1B(1, 2), 4));
  EXPECT_EQ(ErrorField(Trainer::Create(options, plan, 0, &data, nullptr, Clock::Real()).status()), "self_conditioning");
}

}  // namespace
}  // namespace atl::trainer
