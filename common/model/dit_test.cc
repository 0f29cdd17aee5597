#include "common/model/dit.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/model/ops.h"
#include "common/model/testing.h"

namespace atl::model {
namespace {

DitConfig Tiny() {
  return {.channels = 2, .height = 8, .width_pixels = 8, .classes = 3, .patch = 2, .width = 32, .depth = 3, .heads = 4};
}

// Weights away from zero, so that every gate is open.
void Randomise(const LayerList& layers) {
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  for (const NamedTensor& parameter : NamedParameters(layers)) parameter.tensor.normal_(0, 0.1);
}

at::Tensor RunRandom(const LayerList& layers, const DitConfig& config, int64_t n) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({n, config.channels, config.height, config.width_pixels});
  const at::Tensor t = at::rand({n});
  return RunModel(layers, x, t, at::arange(n, at::kLong).remainder(config.classes + 1));
}

TEST(DitTest, StartsAtZeroVelocityWithOneLayerPerBlockPlusTwo) {
  const DitConfig config = Tiny();
  const LayerList layers = BuildLayers(config, 1, 0, LayerCount(config));
  ASSERT_EQ(layers.size(), 5U);
  EXPECT_EQ(layers.front()->name(), "embed");
  EXPECT_EQ(layers[1]->name(), "blocks.0");
  EXPECT_EQ(layers.back()->name(), "head");
  const at::Tensor out = RunRandom(layers, config, 4);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({4, 2, 8, 8}));
  EXPECT_EQ(out.abs().max().item<float>(), 0);
}

TEST(DitTest, AStageHasTheWeightsOfTheWholeModel) {
  const DitConfig config = Tiny();
  const std::vector<NamedTensor> whole = NamedParameters(BuildLayers(config, 9, 0, LayerCount(config)));
  std::vector<NamedTensor> parts = NamedParameters(BuildLayers(config, 9, 0, 2));
  for (NamedTensor& p : NamedParameters(BuildLayers(config, 9, 2, LayerCount(config)))) parts.push_back(std::move(p));
  ASSERT_EQ(whole.size(), parts.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].name, parts[i].name);
    EXPECT_TRUE(at::equal(whole[i].tensor, parts[i].tensor)) << whole[i].name;
  }
  EXPECT_FALSE(at::equal(NamedParameters(BuildLayers(config, 10, 0, 1))[0].tensor, whole[0].tensor));
}

TEST(DitTest, HiddenFlowHasTheStatedNamesAndShapes) {
  DitConfig config = Tiny();
  for (const char* compute : {"float32", "bfloat16"}) {
    config.compute = compute;
    const LayerList layers = BuildLayers(config, 1, 0, 2);
    const Flow flow =
        RunLayers(layers, {{"x", at::randn({2, 2, 8, 8})}, {"t", at::rand({2})}, {"class", at::zeros({2}, at::kLong)}});
    const std::vector<FlowShape> expected = HiddenFlow(config, 2);
    ASSERT_EQ(flow.size(), expected.size());
    for (size_t i = 0; i < flow.size(); ++i) {
      EXPECT_EQ(flow[i].name, expected[i].name);
      EXPECT_EQ(flow[i].tensor.sizes(), at::IntArrayRef(expected[i].shape));
      EXPECT_EQ(flow[i].tensor.scalar_type(), ComputeType(config));
    }
  }
}

TEST(DitTest, OutputDependsOnImageTimeAndClass) {
  const DitConfig config = Tiny();
  const LayerList layers = BuildLayers(config, 1, 0, LayerCount(config));
  Randomise(layers);
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({1, 2, 8, 8});
  const at::Tensor t = at::full({1}, 0.5);
  const at::Tensor zero = at::zeros({1}, at::kLong);
  const at::Tensor out = RunModel(layers, x, t, zero);
  EXPECT_GT((out - RunModel(layers, x + 0.1, t, zero)).abs().max().item<float>(), 1e-4);
  EXPECT_GT((out - RunModel(layers, x, t + 0.1, zero)).abs().max().item<float>(), 1e-4);
  EXPECT_GT((out - RunModel(layers, x, t, zero + 3)).abs().max().item<float>(), 1e-4);
}

TEST(DitTest, AnySquareSizePatchAndChannelCountRuns) {
  for (const auto& [channels, size, patch] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 8, 2}, {3, 16, 4}, {4, 32, 2}, {1, 28, 4}, {1, 7, 1}}) {
    const DitConfig config{.channels = channels,
                           .height = size,
                           .width_pixels = size,
                           .classes = 0,
                           .patch = patch,
                           .width = 16,
                           .depth = 1,
                           .heads = 2};
    ASSERT_TRUE(Validate(config).ok());
    const LayerList layers = BuildLayers(config, 1, 0, LayerCount(config));
    EXPECT_EQ(RunRandom(layers, config, 2).sizes(), at::IntArrayRef({2, channels, size, size}));
  }
}

TEST(DitTest, ClassificationHeadGivesOneLogitPerOutput) {
  DitConfig config = Tiny();
  config.outputs = 4;
  const LayerList layers = BuildLayers(config, 1, 0, LayerCount(config));
  EXPECT_EQ(RunRandom(layers, config, 5).sizes(), at::IntArrayRef({5, 4}));
}

TEST(DitTest, HeadUndoesPatches) {
  // A head whose output weight picks out token channel (row, column, channel) must put it at that pixel: with every
  // token equal, the image repeats one patch.
  DitConfig config = Tiny();
  config.width = 8;
  const LayerList layers = BuildLayers(config, 1, LayerCount(config) - 1, LayerCount(config));
  const at::NoGradGuard no_grad;
  layers[0]->parameters()[3].tensor.copy_(at::arange(8, at::kFloat));  // out.bias: row, column, channel
  const at::Tensor image = Get(RunLayers(layers, {{"tokens", at::zeros({1, 16, 8})}, {"c", at::zeros({1, 8})}}), "out");
  for (int64_t channel = 0; channel < 2; ++channel) {
    for (int64_t row = 0; row < 8; ++row) {
      for (int64_t column = 0; column < 8; ++column) {
        EXPECT_EQ(image[0][channel][row][column].item<int64_t>(), (row % 2 * 2 + column % 2) * 2 + channel);
      }
    }
  }
}

TEST(DitTest, ASelfConditionedModelReadsItsEstimateAndZerosWithoutOne) {
  DitConfig config = Tiny();
  config.self_conditioning = true;
  const LayerList layers = BuildLayers(config, 1, 0, LayerCount(config));
  EXPECT_EQ(layers[0]->parameters()[0].tensor.sizes(), at::IntArrayRef({32, 2 * 2 * 2 * 2}));
  Randomise(layers);
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::randn({3, 2, 8, 8});
  const at::Tensor t = at::rand({3});
  const at::Tensor classes = at::arange(3, at::kLong);
  const at::Tensor without = RunModel(layers, x, t, classes);
  EXPECT_EQ(without.sizes(), x.sizes());
  EXPECT_TRUE(at::equal(without, RunModel(layers, x, t, classes, at::zeros_like(x))));
  const at::Tensor estimate = at::randn({3, 2, 8, 8});
  EXPECT_GT((without - RunModel(layers, x, t, classes, estimate)).abs().max().item<float>(), 1e-3);
  // The patch of a token is its pixels, channel by channel, and behind them the estimate's.
  const Layer& embed = *layers[0];
  const at::Tensor pixels = at::cat({x, estimate}, 1).slice(2, 0, 2).slice(3, 2, 4).reshape({3, -1});
  const at::Tensor weight = embed.parameters()[0].tensor;
  const auto tokens = [&](const at::Tensor& e) {
    return Get(embed.Forward({{"x", x}, {"t", t}, {"class", classes}, {"estimate", e}}), "tokens").select(1, 1);
  };
  const at::Tensor none = at::cat({x, at::zeros_like(x)}, 1).slice(2, 0, 2).slice(3, 2, 4).reshape({3, -1});
  EXPECT_TRUE(IsNear(tokens(estimate) - tokens(at::zeros_like(x)), at::linear(pixels - none, weight)));
}

TEST(DitConfigTest, SelfConditioningIsWrittenWhereItIsAndForVelocitiesOnly) {
  DitConfig config = Tiny();
  EXPECT_EQ(ToJson(config).find("self_conditioning"), std::string::npos);
  config.self_conditioning = true;
  const absl::StatusOr<DitConfig> parsed = ParseDitConfig(ToJson(config), "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, config);
  config.outputs = 4;
  EXPECT_EQ(ErrorField(Validate(config)), "self_conditioning");
}

TEST(DitConfigTest, JsonRoundTripsAndRejectsDamage) {
  DitConfig config = Tiny();
  config.outputs = 4;
  config.compute = "bfloat16";
  const absl::StatusOr<DitConfig> parsed = ParseDitConfig(ToJson(config), "config.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, config);
  for (const char* text :
       {"", "[]", "{}", R"({"architecture": "UNet"})", R"({"architecture": "AtollDit", "channels": "x"})"}) {
    const absl::Status status = ParseDitConfig(text, "m/config.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_NE(status.message().find("m/config.json"), std::string::npos);
  }
}

TEST(DitConfigTest, ValidateNamesTheFieldThatCannotBe) {
  const auto field = [](auto change) {
    DitConfig config = Tiny();
    change(config);
    return ErrorField(Validate(config));
  };
  EXPECT_EQ(field([](DitConfig& c) { c.patch = 3; }), "patch");
  EXPECT_EQ(field([](DitConfig& c) { c.heads = 5; }), "heads");
  EXPECT_EQ(field([](DitConfig& c) { c.width = 30; }), "width");
  EXPECT_EQ(field([](DitConfig& c) { c.depth = 0; }), "depth");
  EXPECT_EQ(field([](DitConfig& c) { c.compute = "float8"; }), "compute");
  EXPECT_EQ(field([](DitConfig& c) { c.mlp_ratio = -1; }), "mlp_ratio");
}

}  // namespace
}  // namespace atl::model
