#include "common/model/frozen.h"

#include <torch/csrc/jit/api/module.h>

#include <sstream>

#include "common/base/errors.h"
#include "common/model/testing.h"
#include "common/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::model {
namespace {

using ::testing::HasSubstr;

FrozenSource Native() {
  FrozenSource source;
  source.components = {
      {.name = "stem", .layers = {{.kind = "convolution", .width = 6, .activation = "silu"}}},
      {.name = "encoder",
       .input = "stem",
       .output = "latent",
       .layers = {{.kind = "block", .activation = "gelu"},
                  {.kind = "norm"},
                  {.kind = "convolution", .width = 4, .kernel = 5, .stride = 2, .activation = "tanh"}}},
      {.name = "labels",
       .input = "label",
       .output = "condition",
       .layers = {{.kind = "embedding", .width = 8}, {.kind = "linear", .width = 12}}},
      {.name = "summary", .input = "encoder", .layers = {{.kind = "mean", .activation = "relu"}}}};
  source.image = {2, 8, 8};
  source.classes = 3;
  source.seed = 5;
  return source;
}

// A TorchScript file that multiplies by three.
std::string Script(const std::string& body) {
  torch::jit::Module module("layer");
  module.define("def forward(self, x):\n  return " + body + "\n");
  std::ostringstream out;
  module.save(out);
  return out.str();
}

std::shared_ptr<const std::map<std::string, std::string>> Files(std::map<std::string, std::string> files) {
  return std::make_shared<const std::map<std::string, std::string>>(std::move(files));
}

FrozenSource Scripted(const std::string& body, spec::SampleShape shape) {
  FrozenSource source;
  source.components = {{.name = "encoder", .output = "latent", .torchscript = {"a.pt", "b.pt"}, .shape = shape}};
  source.image = {1, 4, 4};
  source.files = Files({{"a.pt", Script("x * 3")}, {"b.pt", Script(body)}});
  return source;
}

at::Tensor Images(int64_t n) {
  return at::arange(n * 128, at::kFloat).reshape({n, 2, 8, 8}).mul(0.37).sin();
}

TEST(FrozenTest, LayersRunOneByOneAsTheyRunTogether) {
  const auto components = LoadFrozen(Native());
  ASSERT_TRUE(components.ok()) << components.status();
  const at::Tensor stem = *(*components)[0].Run(Images(6), 0, 1);
  const FrozenComponent& encoder = (*components)[1];
  const at::Tensor whole = *encoder.Run(stem, 0, 3);
  EXPECT_EQ(whole.sizes(), at::IntArrayRef({6, 4, 4, 4}));
  EXPECT_FALSE(whole.requires_grad());
  EXPECT_GT(whole.std().item<float>(), 0.1);
  at::Tensor step = stem;
  for (int32_t layer = 0; layer < 3; ++layer) step = *encoder.Run(step, layer, layer + 1);
  EXPECT_TRUE(at::equal(whole, step));
  EXPECT_EQ(encoder.OutputOf(2).shape, (std::vector<int64_t>{4, 4, 4}));
  EXPECT_EQ(encoder.OutputOf(2).bytes, 256);
}

TEST(FrozenTest, PartsOfABatchGiveTheRowsOfTheWhole) {
  const auto components = LoadFrozen(Native());
  ASSERT_TRUE(components.ok()) << components.status();
  const at::Tensor images = Images(8);
  const at::Tensor whole = *(*components)[1].Run(*(*components)[0].Run(images, 0, 1), 0, 3);
  for (const auto& [first, n] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 3}, {4, 4}}) {
    const at::Tensor part = *(*components)[1].Run(*(*components)[0].Run(images.narrow(0, first, n), 0, 1), 0, 3);
    EXPECT_TRUE(IsNear(part, whole.narrow(0, first, n))) << first;
  }
}

TEST(FrozenTest, WeightsComeFromTheSeedAlone) {
  const auto a = LoadFrozen(Native());
  const auto b = LoadFrozen(Native());
  FrozenSource other = Native();
  other.seed = 6;
  const auto c = LoadFrozen(other);
  const at::Tensor images = Images(2);
  EXPECT_TRUE(at::equal(*(*a)[0].Run(images, 0, 1), *(*b)[0].Run(images, 0, 1)));
  EXPECT_FALSE(at::equal(*(*a)[0].Run(images, 0, 1), *(*c)[0].Run(images, 0, 1)));
  const at::Tensor conditions = *(*a)[2].Run(at::arange(4, at::kLong), 0, 2);  // the null class is the last
  EXPECT_EQ(conditions.sizes(), at::IntArrayRef({4, 12}));
  EXPECT_EQ((*a)[3].OutputOf(0).shape, (std::vector<int64_t>{4}));
}

TEST(FrozenTest, WeightsComeFromAFile) {
  FrozenSource source;
  source.components = {{.name = "linear", .layers = {{.kind = "linear", .width = 2}}, .weights = "w"}};
  source.image = {1, 1, 3};
  const at::Tensor weight = at::arange(6, at::kFloat).reshape({2, 3});
  const at::Tensor bias = at::ones({2});
  const auto file = [](const at::Tensor& w, const at::Tensor& b) {
    return *storage::SerializeSafetensors({ToView("0.weight", w), ToView("0.bias", b)}, {});
  };
  source.files = Files({{"w", file(weight, bias)}});
  const auto components = LoadFrozen(source);
  ASSERT_TRUE(components.ok()) << components.status();
  EXPECT_TRUE(at::equal(*(*components)[0].Run(at::ones({1, 1, 1, 3}), 0, 1), at::tensor({4.F, 13.F}).reshape({1, 2})));
  source.files = Files({{"w", file(at::ones({2, 4}), bias)}});
  absl::Status status = LoadFrozen(source).status();
  EXPECT_EQ(ErrorReason(status), "FROZEN_FILE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("'0.weight' as float32 [2, 3], found float32 [2, 4]"));
  source.files.reset();
  EXPECT_EQ(ErrorField(LoadFrozen(source).status()), "frozen[0].weights");
}

TEST(FrozenTest, TorchScriptFilesAreLayers) {
  const auto components = LoadFrozen(Scripted("x + 1", {1, 4, 4}));
  ASSERT_TRUE(components.ok()) << components.status();
  EXPECT_EQ((*components)[0].layer_count(), 2);
  EXPECT_TRUE(at::equal(*(*components)[0].Run(at::ones({2, 1, 4, 4}), 0, 2), at::full({2, 1, 4, 4}, 4)));
  EXPECT_EQ(spec::FrozenFiles(Scripted("x", {}).components), (std::vector<std::string>{"a.pt", "b.pt"}));
}

TEST(FrozenTest, LayersThatDoNotRunHereAreTriedAndDropped) {
  FrozenSource source = Native();
  const auto all = LoadFrozen(source);
  ASSERT_TRUE(all.ok()) << all.status();
  // The last layer of the encoder, and nothing of the others.
  const int32_t last = (*all)[1].layer_count() - 1;
  source.kept = {{0, 0}, {last, last + 1}};
  const auto some = LoadFrozen(source);
  ASSERT_TRUE(some.ok()) << some.status();
  ASSERT_EQ(some->size(), all->size());
  for (size_t c = 0; c < all->size(); ++c) {
    ASSERT_EQ((*some)[c].layer_count(), (*all)[c].layer_count());
    for (int32_t layer = 0; layer < (*all)[c].layer_count(); ++layer) {
      EXPECT_EQ((*some)[c].OutputOf(layer).shape, (*all)[c].OutputOf(layer).shape);
      EXPECT_EQ((*some)[c].Holds(layer), c == 1 && layer == last);
      EXPECT_TRUE((*all)[c].Holds(layer));
    }
  }
  // The same weights, whatever else stayed.
  const std::vector<int64_t>& before = (*all)[1].OutputOf(last - 1).shape;
  std::vector<int64_t> shape{2};
  shape.insert(shape.end(), before.begin(), before.end());
  EXPECT_TRUE(
      at::equal(*(*all)[1].Run(at::ones(shape), last, last + 1), *(*some)[1].Run(at::ones(shape), last, last + 1)));
  // Refused all the same.
  FrozenSource scripted = Scripted("x", {1, 2, 2});
  scripted.kept = {{0, 1}};
  EXPECT_EQ(ErrorReason(LoadFrozen(scripted).status()), "FROZEN_SHAPE");
}

TEST(FrozenTest, AFileThatDoesNotFitIsRefusedWithFileExpectedAndFoundShape) {
  absl::Status status = LoadFrozen(Scripted("x", {1, 2, 2})).status();
  EXPECT_EQ(ErrorReason(status), "FROZEN_SHAPE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("b.pt"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("[1, 2, 2] per sample"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("found float32 [1, 4, 4]"));
  status = LoadFrozen(Scripted("x.view(7)", {1, 4, 4})).status();
  EXPECT_EQ(ErrorReason(status), "FROZEN_LAYER_FAILED") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("b.pt"));
  EXPECT_EQ(ErrorReason(LoadFrozen(Scripted("x.sum()", {1, 4, 4})).status()), "FROZEN_SHAPE");
  EXPECT_EQ(ErrorReason(LoadFrozen(Scripted("(x, x)", {1, 4, 4})).status()), "FROZEN_LAYER_FAILED");
  FrozenSource broken = Scripted("x", {1, 4, 4});
  broken.files = Files({{"a.pt", "no archive"}, {"b.pt", Script("x")}});
  status = LoadFrozen(broken).status();
  EXPECT_EQ(ErrorReason(status), "TORCHSCRIPT_FILE");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a.pt: expected a TorchScript archive, found 10 bytes that are no"));
  const std::string whole = Script("x");
  broken.files = Files({{"a.pt", whole.substr(0, whole.size() / 2)}, {"b.pt", whole}});
  status = LoadFrozen(broken).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("found one cut off after"));
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("Pytorch")));
}

}  // namespace
}  // namespace atl::model
