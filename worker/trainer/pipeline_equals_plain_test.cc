// The gradients of a pipelined step against one process with stock autograd: a DiT written here with nothing but ATen's
// own operations, accumulating the same micro-batches.
#include "common/schedule/generators.h"
#include "worker/trainer/gradient_testing.h"

namespace atl::trainer {
namespace {

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

struct Case {
  int32_t stages;
  std::string schedule;
};

class PipelineEqualsPlainTest : public ::testing::TestWithParam<Case> {};

TEST_P(PipelineEqualsPlainTest, GradientsAreEqualBitForBit) {
  const TrainerOptions options = SmallOptions();
  const planner::Plan plan = PlanFor(options, GetParam().stages, GetParam().schedule);
  ExpectPipelineEqualsPlain(options, plan);
}

TEST_P(PipelineEqualsPlainTest, SplitBackwardsAreEqualBitForBit) {
  const TrainerOptions options = SmallOptions();
  const planner::Plan plan = PlanFor(options, GetParam().stages, GetParam().schedule);
  const Parameters values = RandomParameters(ConfigOf(options));
  const Parameters plain = PlainGradients(options, plan, values);
  for (const size_t delay : {size_t{0}, size_t{1}, size_t{3}, size_t{100}}) {
    ExpectBitEqual(plain, PipelineGradients(options, SplitBackward(plan, delay), values)[0]);
  }
}

TEST_P(PipelineEqualsPlainTest, RouterNetworksAreEqualBitForBit) {
  TrainerOptions options = SmallOptions();
  options.objective = Objective::kCluster;
  const planner::Plan plan = PlanFor(options, GetParam().stages, GetParam().schedule);
  ExpectPipelineEqualsPlain(options, plan);
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
  ExpectPipelineEqualsPlain(options, plan);
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
  ExpectPipelineEqualsPlain(options, plan);
}

// A model as small as eight stages allow, so that the whole matrix takes seconds.
TrainerOptions TinyOptions() {
  TrainerOptions options = SmallOptions();
  options.model = {.patch = 4, .width = 16, .depth = 6, .heads = 2, .mlp_ratio = 2.0};
  return options;
}

constexpr int32_t kMicroBatches[] = {1, 2, 3, 5, 8};

// Returns the gradients that every schedule must reproduce; computed once for all schedules.
const Parameters& TinyPlainGradients(const TrainerOptions& options, const Parameters& values, int32_t micro_batches,
                                     int32_t replicas) {
  static auto* const known = new std::map<std::tuple<bool, int32_t, int32_t>, Parameters>;
  Parameters& gradients = (*known)[{options.model.self_conditioning, micro_batches, replicas}];
  if (gradients.empty()) {
    planner::Plan one = PlanAround(options, *schedule::GenerateGPipe(1, micro_batches), 2, replicas);
    if (options.model.self_conditioning) one = SelfConditioned(one);
    gradients = PlainGradients(options, one, values);
  }
  return gradients;
}

// With and without replicas, recomputation and an estimate.
void ExpectScheduleEqualsPlain(const schedule::Schedule& schedule) {
  for (const bool self_conditioning : {false, true}) {
    TrainerOptions options = TinyOptions();
    options.model.self_conditioning = self_conditioning;
    const Parameters values = RandomParameters(ConfigOf(options));
    for (const int32_t replicas : {1, 2}) {
      const Parameters& plain = TinyPlainGradients(options, values, schedule.micro_batches, replicas);
      planner::Plan plan = PlanAround(options, schedule, 2, replicas);
      if (self_conditioning) plan = SelfConditioned(plan);
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{} replicas, recompute {}, self-conditioning {}", replicas, recompute, self_conditioning));
        if (recompute) plan.recomputed_layers = AllLayers(plan);
        for (const Parameters& of_replica : PipelineGradients(options, plan, values)) ExpectBitEqual(plain, of_replica);
      }
    }
  }
}

class EveryScheduleEqualsPlainTest : public ::testing::TestWithParam<std::tuple<std::string, int32_t>> {};

TEST_P(EveryScheduleEqualsPlainTest, AtEveryCountOfMicroBatches) {
  const auto& [name, ranks] = GetParam();
  for (const int32_t micro_batches : kMicroBatches) {
    SCOPED_TRACE(std::to_string(micro_batches) + " micro-batches");
    const absl::StatusOr<schedule::Schedule> schedule = schedule::Generate(name, ranks, micro_batches);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    ExpectScheduleEqualsPlain(*schedule);
  }
}

std::vector<std::string> Names() {
  const std::vector<std::string_view> names = schedule::GeneratorNames();
  return {names.begin(), names.end()};
}

INSTANTIATE_TEST_SUITE_P(Matrix, EveryScheduleEqualsPlainTest,
                         ::testing::Combine(::testing::ValuesIn(Names()), ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "On" + std::to_string(std::get<1>(info.param));
                           std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
                           return name;
                         });

// By hand: two stages per rank, round and in V placement, with the backward split; weight gradients last.
TEST(HandWrittenSchedulesTest, AreEqualBitForBit) {
  for (const char* text : {
           "0F0,2F0,0F1,2F1,2I0,0I0,2I1,0I1,2W0,0W0,2W1,0W1\n1F0,3F0,3B0,1F1,1B0,3F1,3B1,1B1\n",
           "0F0,0F1,3F0,3I0,0I0,3F1,3W0,3B1,0W0,0B1\n1F0,2F0,1F1,2F1,2I0,1I0,2W0,1W0,2B1,1B1\n",
           "0F0,0F1,0F2,0I0,0I1,0I2,0W0,0W1,0W2\n1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2\n",
           "0F0,1F0,2F0,2I0,2W0,1I0,1W0,0I0,0W0\n",
       }) {
    SCOPED_TRACE(text);
    ExpectScheduleEqualsPlain(*schedule::ParseText(text));
  }
}

// Each layer alone, and runs of layers between recomputed ones.
TEST(RecomputationTest, AnySetOfLayersIsEqualBitForBit) {
  const TrainerOptions options = TinyOptions();
  const schedule::Schedule schedule = *schedule::ParseText("0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1W0,1B1\n");
  for (const std::vector<int32_t>& layers : std::vector<std::vector<int32_t>>{
           {0}, {1}, {7}, {0, 7}, {1, 2}, {2, 5}, {0, 2, 4, 6}, {1, 3, 5, 7}, {3, 4}, {1, 2, 3, 4, 5, 6}}) {
    planner::Plan plan = PlanAround(options, schedule, 2);
    plan.recomputed_layers = layers;
    SCOPED_TRACE(::testing::PrintToString(layers));
    ExpectPipelineEqualsPlain(options, plan);
  }
}

TEST(RecomputationTest, RouterNetworksAreEqualBitForBit) {
  TrainerOptions options = TinyOptions();
  options.objective = Objective::kCluster;
  planner::Plan plan = PlanAround(options, *schedule::Generate1F1B(2, 3), 2);
  plan.recomputed_layers = AllLayers(plan);
  ExpectPipelineEqualsPlain(options, plan);
}

// Four replicas: a part each, and sums in replica order.
TEST(ReplicasTest, ThreeAndFourAreEqualBitForBit) {
  const TrainerOptions options = TinyOptions();
  for (const int32_t replicas : {3, 4}) {
    ExpectPipelineEqualsPlain(options, PlanAround(options, *schedule::Generate1F1B(2, 2), 1, replicas));
  }
}

}  // namespace
}  // namespace atl::trainer
