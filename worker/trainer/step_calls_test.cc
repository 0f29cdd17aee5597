// How often a step calls ATen's operators: what costs time, or a device's, without a change of any number.
#include "worker/trainer/calls_testing.h"
#include "worker/trainer/plain_dit_testing.h"
#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {
namespace {

// Every one of these makes the host wait for a device. Norms and losses come back as one tensor.
TEST(StepCallsTest, AStepReadsNoScalarOfADevice) {
  for (const Objective objective : {Objective::kVelocity, Objective::kCluster}) {
    TrainerOptions options = SmallOptions();
    options.objective = objective;
    StrokeData data(160, options.height, 5);
    auto trainer = Trainer::Create(options, PlanFor(options, 1), 0, &data, nullptr, Clock::Real());
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const RecordedCalls calls;
    ASSERT_TRUE((*trainer)->Step().ok());
    EXPECT_GT(calls.Count("aten::mm"), 0);
    // On the CPU the update reads its count of steps from host memory, once per parameter.
    const int64_t parameters = static_cast<int64_t>(
        model::NamedParameters(model::BuildLayers(ConfigOf(options), 1, 0, options.model.depth + 2)).size());
    EXPECT_EQ(calls.Count("aten::item"), parameters);
    EXPECT_EQ(calls.Count("aten::_local_scalar_dense"), parameters);
  }
}

// The reference that benchmarks compare with must not do per micro-batch what can be done once.
TEST(PlainDitTest, MakesItsTablesOnce) {
  const model::DitConfig config = ConfigOf(SmallOptions());
  const PlainDit dit(config, RandomParameters(config));
  const at::Tensor x = at::zeros({2, config.channels, config.height, config.width_pixels});
  const RecordedCalls calls;
  dit.Run(x, at::zeros({2}), at::zeros({2}, at::kLong));
  EXPECT_GT(calls.Count("aten::linear"), 0);
  EXPECT_EQ(calls.Count("aten::fill_"), 0);
  EXPECT_EQ(calls.Count("aten::arange"), 0);
}

}  // namespace
}  // namespace atl::trainer
