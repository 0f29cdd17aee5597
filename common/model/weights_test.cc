#include "common/model/weights.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/model/weights_testing.h"

namespace atl::model {
namespace {

DitConfig Tiny() {
  return {.channels = 1, .height = 4, .width_pixels = 4, .classes = 2, .patch = 2, .width = 16, .depth = 1, .heads = 2};
}

TEST(WeightsTest, AModelReadBackFromItsFilesGivesTheSameOutput) {
  const DitConfig config = Tiny();
  const LayerList layers = BuildLayers(config, 4, 0, LayerCount(config));
  {
    const at::NoGradGuard no_grad;
    for (const NamedTensor& parameter : NamedParameters(layers)) parameter.tensor.normal_(0, 0.2);
  }
  const absl::StatusOr<std::string> file = SerializeParameters(layers);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<LoadedModel> loaded = LoadModel(ToJson(config), *file, "expert_0");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->config, config);

  const at::Tensor x = at::randn({3, 1, 4, 4});
  const at::Tensor t = at::rand({3});
  const at::Tensor classes = at::arange(3, at::kLong);
  const at::Tensor out = RunModel(loaded->layers, x, t, classes);
  EXPECT_FALSE(out.requires_grad());
  EXPECT_TRUE(at::equal(out, RunModel(layers, x, t, classes)));
}

TEST(WeightsTest, FilesThatDoNotFitEachOtherAreDataLossNamingTheTensor) {
  DitConfig config = Tiny();
  const absl::StatusOr<std::string> file = SerializeParameters(BuildLayers(config, 4, 0, LayerCount(config)));
  ASSERT_TRUE(file.ok());
  config.width = 32;
  absl::Status status = LoadModel(ToJson(config), *file, "expert_0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("embed.patch.weight"), std::string::npos) << status;
  config = Tiny();
  config.depth = 2;
  status = LoadModel(ToJson(config), *file, "expert_0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("blocks.1.modulation.weight"), std::string::npos) << status;
  status = LoadModel(ToJson(Tiny()), file->substr(0, file->size() - 8), "expert_0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(LoadModel("{", *file, "expert_0").status().code(), absl::StatusCode::kDataLoss);
}

TEST(WeightsTest, EveryDtypeRoundTripsThroughAView) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte}) {
    const at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3}).to(type);
    const absl::StatusOr<at::Tensor> back = ToTensor(ToView("x", tensor));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->scalar_type(), type);
    EXPECT_TRUE(at::equal(*back, tensor));
  }
}

}  // namespace
}  // namespace atl::model
