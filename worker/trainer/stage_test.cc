// Tests the results and the memory of a stage, action by action.
#include "worker/trainer/stage.h"

#include <memory>

#include <ATen/record_function.h>

#include "worker/trainer/gradient_testing.h"
#include "worker/trainer/memory_meter.h"

namespace atl::trainer {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kSamples = 4;
constexpr int64_t kWidth = 32;
constexpr int64_t kTokens = 16 * kSamples;  // 8 x 8 pixels in patches of 2

// Embedding, one block, head: each a stage of its own, all on one rank, driven by hand.
class ThreeStages {
 public:
  explicit ThreeStages(std::vector<int32_t> recomputed_layers = {}, bool self_conditioning = false) {
    options_.model = {.patch = 2, .width = kWidth, .depth = 1, .heads = 4, .mlp_ratio = 4.0};
    options_.model.self_conditioning = self_conditioning;
    planner::Plan plan = PlanAround(options_, *schedule::ParseText("0F0,1F0,2F0,2B0,1B0,0B0"), kSamples);
    plan.recomputed_layers = std::move(recomputed_layers);
    at::set_num_threads(1);
    feed_ = std::make_unique<BatchFeed>(options_, plan, 0, &data_);
    stages_ = std::make_unique<RankStages>(options_, ConfigOf(options_), plan, 0, feed_.get());
  }

  void Begin() {
    feed_->Begin(0);
    stages_->Begin();
  }
  void Forward(int32_t stage) {
    Expect(stages_->Forward(stage, 0));
    if (stage < 2) Expect(stages_->HandOver(stage, 0));
  }
  void Estimate(int32_t stage) {
    Expect(stages_->EstimateForward(stage, 0));
    Expect(stages_->HandOverEstimate(stage, 0));
  }
  void InputGradient(int32_t stage) {
    Expect(stages_->InputGradient(stage, 0));
    if (stage > 0) Expect(stages_->HandOverGradient(stage, 0));
  }
  void WeightGradient(int32_t stage) { Expect(stages_->WeightGradient(stage, 0)); }
  void Release(int32_t stage) { stages_->Release(stage, 0); }
  void BackwardOf(int32_t stage) {
    InputGradient(stage);
    WeightGradient(stage);
    Release(stage);
  }
  void WholeMicroBatch(bool estimate = false) {
    Begin();
    for (const int32_t stage : {0, 1, 2}) {
      if (estimate) Estimate(stage);
    }
    for (const int32_t stage : {0, 1, 2}) Forward(stage);
    for (const int32_t stage : {2, 1, 0}) BackwardOf(stage);
    stages_->Begin();  // forgets the loss
  }

 private:
  static void Expect(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  TrainerOptions options_ = SmallOptions();
  StrokeData data_{160, 8, 5};
  std::unique_ptr<BatchFeed> feed_;
  std::unique_ptr<RankStages> stages_;
};

TEST(StageMemoryTest, NothingOfAMicroBatchIsLeftAfterItsWeightGradient) {
  for (const std::vector<int32_t>& recomputed : std::vector<std::vector<int32_t>>{{}, {1}, {0, 1, 2}}) {
    MemoryMeter meter;
    ThreeStages stages(recomputed);
    stages.WholeMicroBatch();  // the gradients come to be
    const int64_t live = meter.live_bytes();
    for (int i = 0; i < 3; ++i) stages.WholeMicroBatch();
    EXPECT_EQ(meter.live_bytes(), live);
  }
}

TEST(StageMemoryTest, TheExtraForwardKeepsWhatTheNextStageReadsAndInTheEndTheVelocity) {
  MemoryMeter meter;
  ThreeStages stages({}, /*self_conditioning=*/true);
  stages.WholeMicroBatch(/*estimate=*/true);
  const int64_t live = meter.live_bytes();
  stages.WholeMicroBatch(/*estimate=*/true);
  EXPECT_EQ(meter.live_bytes(), live);  // F took the estimate
  stages.Begin();
  stages.Estimate(0);
  const int64_t after_embedding = meter.live_bytes();
  stages.Estimate(1);
  // The block's tokens instead of the embedding's; the conditioning is the same memory.
  EXPECT_EQ(meter.live_bytes(), after_embedding);
  stages.Estimate(2);
  const int64_t velocity = 8 * 8 * kSamples * kFloat;
  EXPECT_EQ(meter.live_bytes() - after_embedding, velocity - (kTokens + kSamples) * kWidth * kFloat);
}

TEST(StageMemoryTest, BetweenIAndWLivesJustWhatWReads) {
  MemoryMeter meter;
  ThreeStages stages;
  stages.WholeMicroBatch();
  stages.Begin();
  for (const int32_t stage : {0, 1, 2}) stages.Forward(stage);
  stages.BackwardOf(2);
  stages.InputGradient(1);
  const int64_t before = meter.live_bytes();
  stages.WeightGradient(1);
  stages.Release(1);
  // Each Linear keeps its input and its output's gradient; in widths: modulation 1 + 6 per sample; per token qkv 1 + 3,
  // proj 1 + 1, mlp.in 1 + 4, mlp.out 4 + 1.
  EXPECT_EQ(before - meter.live_bytes(), (7 * kSamples + 16 * kTokens) * kWidth * kFloat);
}

TEST(StageMemoryTest, ARecomputedLayerKeepsItsInputsAlone) {
  const auto added_by_forward = [](std::vector<int32_t> recomputed) {
    MemoryMeter meter;
    ThreeStages stages(std::move(recomputed));
    stages.WholeMicroBatch();
    stages.Begin();
    stages.Forward(0);
    const int64_t before = meter.live_bytes();
    stages.Forward(1);
    return meter.live_bytes() - before;
  };
  // The inputs were there before; what comes is the output, which the next stage reads.
  EXPECT_EQ(added_by_forward({1}), kTokens * kWidth * kFloat);
  EXPECT_GT(added_by_forward({}), 15 * kTokens * kWidth * kFloat);
}

thread_local int products = 0;

int ProductsOf(const std::function<void()>& run) {
  products = 0;
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(function.name()) == "aten::mm") ++products;
        return nullptr;
      }));
  run();
  at::removeCallback(handle);
  return products;
}

TEST(StageTest, TheFirstStageComputesNoGradientOfItsInputs) {
  ThreeStages stages;
  stages.Begin();
  for (const int32_t stage : {0, 1, 2}) stages.Forward(stage);
  EXPECT_EQ(ProductsOf([&] { stages.InputGradient(2); }), 2);
  EXPECT_EQ(ProductsOf([&] { stages.InputGradient(1); }), 5);
  // Among patch, time.in and time.out, only time.out has an input that a gradient must flow through.
  EXPECT_EQ(ProductsOf([&] { stages.InputGradient(0); }), 1);
  EXPECT_EQ(ProductsOf([&] { stages.WeightGradient(0); }), 3);
  EXPECT_EQ(ProductsOf([&] { stages.WeightGradient(1); }), 5);
}

}  // namespace
}  // namespace atl::trainer
