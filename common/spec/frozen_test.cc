#include "common/spec/frozen.h"

#include <functional>

#include "common/base/errors.h"
#include "common/spec/spec_io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::spec {
namespace {

using ::testing::HasSubstr;

// An image encoder, a second stage that makes the latent, and a label encoder.
std::vector<FrozenSpec> Good() {
  return {{.name = "stem", .layers = {{.kind = "convolution", .width = 8, .stride = 2, .activation = "silu"}}},
          {.name = "encoder",
           .input = "stem",
           .output = "latent",
           .layers = {{.kind = "block", .activation = "silu"}, {.kind = "norm"}, {.kind = "convolution", .width = 4}},
           .shape = {4, 4, 4}},
          {.name = "labels",
           .input = "label",
           .output = "condition",
           .layers = {{.kind = "embedding", .width = 16}, {.kind = "linear", .width = 96}}}};
}

const SampleShape kImage{1, 8, 8};

TEST(FrozenTest, ShapesFollowTheLayers) {
  const auto shapes = FrozenOutputShapes(Good(), kImage);
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  EXPECT_EQ(*shapes, (std::vector<std::optional<SampleShape>>{{{8, 4, 4}}, {{4, 4, 4}}, {{96}}}));
  EXPECT_EQ(*LearntShape(Good(), kImage), (SampleShape{4, 4, 4}));
  EXPECT_EQ(*LearntShape({}, kImage), kImage);
  // Odd sizes round up, as a convolution padded by half its kernel does.
  const FrozenSpec odd{.name = "odd", .layers = {{.kind = "convolution", .width = 2, .kernel = 5, .stride = 3}}};
  EXPECT_EQ(NativeShapes(odd, {1, 7, 8}, "frozen[0]")->back(), (SampleShape{2, 3, 3}));
  const FrozenSpec pooled{.name = "pooled", .layers = {{.kind = "mean"}, {.kind = "linear", .width = 3}}};
  EXPECT_EQ(NativeShapes(pooled, kImage, "frozen[0]")->back(), (SampleShape{3}));
}

TEST(FrozenTest, AChainHoldsWhatAComponentNeeds) {
  EXPECT_EQ(FrozenChain(Good(), 1), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(FrozenChain(Good(), 2), (std::vector<int32_t>{2}));
}

TEST(FrozenTest, ATorchScriptFilesShapeIsTheDeclaredOne) {
  std::vector<FrozenSpec> components = Good();
  components[1].layers.clear();
  components[1].torchscript = {"file:///a.pt"};
  components[1].shape = {3, 2, 2};
  EXPECT_EQ(*LearntShape(components, kImage), (SampleShape{3, 2, 2}));
  EXPECT_TRUE(ValidateFrozen(components, &kImage, 10, 96).ok());
}

TEST(FrozenTest, FilesAreNamedWithTheirFieldsAndHashes) {
  const std::string hash(64, 'a');
  std::vector<FrozenSpec> components = {
      {.name = "a", .torchscript = {"s3://b/1.pt", "s3://b/2.pt"}, .file_sha256 = {"", hash}},
      {.name = "b", .layers = {{.kind = "norm"}}, .weights = "s3://b/w.safetensors"}};
  const std::vector<FrozenFileField> files = FrozenFileFields(components);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[0].field, "frozen[0].torchscript[0]");
  EXPECT_EQ(files[0].sha256, "");
  EXPECT_EQ(files[1].uri, "s3://b/2.pt");
  EXPECT_EQ(files[1].sha256, hash);
  EXPECT_EQ(files[2].field, "frozen[1].weights");
  EXPECT_EQ(files[2].sha256, "");
}

TEST(FrozenTest, HashesAreOnePerFile) {
  const std::string hash(64, '0');
  for (const std::vector<std::string>& good : {std::vector<std::string>{}, {"", ""}, {hash, ""}, {hash, hash}}) {
    const std::vector<FrozenSpec> components = {
        {.name = "a", .torchscript = {"s3://b/1.pt", "s3://b/2.pt"}, .file_sha256 = good}};
    EXPECT_TRUE(ValidateFrozen(components, nullptr, 10, 96).ok()) << good.size();
  }
  struct Case {
    std::vector<std::string> hashes;
    std::string field;
    std::string message;
  };
  const Case cases[] = {
      {{hash}, "frozen[0].file_sha256", "expected none, or one for each of the component's 2 files; found 1"},
      {{hash, hash, hash}, "frozen[0].file_sha256", "found 3"},
      {{hash, hash.substr(1)}, "frozen[0].file_sha256[1]", "expected 64 lower-case hex digits"},
      {{std::string(64, 'A'), hash}, "frozen[0].file_sha256[0]", "found 'AAA"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ValidateFrozen(
        {{.name = "a", .torchscript = {"s3://b/1.pt", "s3://b/2.pt"}, .file_sha256 = c.hashes}}, nullptr, 10, 96);
    EXPECT_EQ(ErrorField(status), c.field) << status;
    EXPECT_EQ(ErrorReason(status), "INVALID_SHA256");
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

struct Bad {
  std::function<void(std::vector<FrozenSpec>&)> change;
  std::string field;
  std::string reason;
  std::string message;
};

TEST(FrozenTest, EveryRuleNamesItsField) {
  ASSERT_TRUE(ValidateFrozen(Good(), &kImage, 10, 96).ok()) << ValidateFrozen(Good(), &kImage, 10, 96);
  ASSERT_TRUE(ValidateFrozen(Good(), nullptr, 0, 96).ok());
  const Bad bads[] = {
      {[](auto& c) { c[0].name = ""; }, "frozen[0].name", "REQUIRED_FIELD", ""},
      {[](auto& c) { c[0].name = "label"; }, "frozen[0].name", "INVALID_NAME", ""},
      {[](auto& c) { c[1].name = "stem"; }, "frozen[1].name", "INVALID_NAME", "again"},
      {[](auto& c) { c[1].input = "steam"; }, "frozen[1].input", "UNKNOWN_VALUE", "did you mean 'stem'"},
      {[](auto& c) { c[0].input = "encoder"; }, "frozen[0].input", "UNKNOWN_VALUE", "image, label"},
      {[](auto& c) { c[0].output = "latents"; }, "frozen[0].output", "UNKNOWN_VALUE", "did you mean 'latent'"},
      {[](auto& c) { c[0].output = "latent"; }, "frozen[1].output", "FROZEN_OUTPUT", "'stem' too"},
      {[](auto& c) { c[0].output = "condition"; }, "frozen[0].input", "FROZEN_OUTPUT", "known when sampling"},
      {[](auto& c) { c[0].layers.clear(); }, "frozen[0].layers", "FROZEN_LAYERS", "0 and 0"},
      {[](auto& c) { c[0].torchscript = {"a"}; }, "frozen[0].layers", "FROZEN_LAYERS", "1 and 1"},
      {[](auto& c) { c[0].layers[0].kind = "convolutional"; }, "frozen[0].layers[0].kind", "UNKNOWN_VALUE",
       "did you mean 'convolution'"},
      {[](auto& c) { c[0].layers[0].width = 0; }, "frozen[0].layers[0].width", "OUT_OF_RANGE", "between 1"},
      {[](auto& c) { c[1].layers[1].width = 3; }, "frozen[1].layers[1].width", "OUT_OF_RANGE", "found 3"},
      {[](auto& c) { c[0].layers[0].kernel = 4; }, "frozen[0].layers[0].kernel", "OUT_OF_RANGE", "odd"},
      {[](auto& c) { c[0].layers[0].stride = 0; }, "frozen[0].layers[0].stride", "OUT_OF_RANGE", ""},
      {[](auto& c) { c[0].layers[0].activation = "swish"; }, "frozen[0].layers[0].activation", "UNKNOWN_VALUE", ""},
      {[](auto& c) {
         c[1].shape = {4, 8, 8};
       },
       "frozen[1].shape", "FROZEN_SHAPE", "expected [4, 4, 4], which the layers make, found [4, 8, 8]"},
      {[](auto& c) {
         c[1].layers.clear(), c[1].torchscript = {"a"}, c[1].shape = {4, 65536, 65536};
       },
       "frozen[1].shape", "OUT_OF_RANGE", "between 1 and 67108864, found 4294967296"},
      // Also for a component that is only an input of others, which count its values.
      {[](auto& c) {
         c[0].layers.clear(), c[0].torchscript = {"a"}, c[0].shape = {65536, 65536, 65536, 65536, 65536};
       },
       "frozen[0].shape", "OUT_OF_RANGE", "between 1 and 4398046511104, found 281474976710656"},
      {[](auto& c) { c[1].shape = {4}; }, "frozen[1].shape", "FROZEN_SHAPE", "[channels, height, width]"},
      {[](auto& c) { c[1].layers = {{.kind = "mean"}}, c[1].shape = {}; }, "frozen[1].output", "FROZEN_SHAPE",
       "found [8]"},
      {[](auto& c) { c[2].layers[1].width = 64; }, "frozen[2].output", "FROZEN_SHAPE", "[96], found [64]"},
      {[](auto& c) { c[2].layers.erase(c[2].layers.begin()); }, "frozen[2].layers[0]", "FROZEN_SHAPE", "a class"},
      {[](auto& c) { c[1].layers.clear(), c[1].torchscript = {"a"}, c[1].shape = {}; }, "frozen[1].shape",
       "FROZEN_SHAPE", "found 0 numbers"},
      {[](auto& c) { c[1].layers.clear(), c[1].torchscript = {""}; }, "frozen[1].torchscript[0]", "REQUIRED_FIELD", ""},
      {[](auto& c) { c[1].layers.clear(), c[1].torchscript = {"a"}, c[1].weights = "w"; }, "frozen[1].weights",
       "FROZEN_LAYERS", "found 'w'"},
  };
  for (const Bad& bad : bads) {
    std::vector<FrozenSpec> components = Good();
    bad.change(components);
    const absl::Status status = ValidateFrozen(components, &kImage, 10, 96);
    EXPECT_EQ(ErrorField(status), bad.field) << status;
    EXPECT_EQ(ErrorReason(status), bad.reason) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
  EXPECT_EQ(ErrorField(ValidateFrozen(Good(), &kImage, 0, 96)), "frozen[2].input");  // a dataset without classes
}

TEST(FrozenTest, TheModelLearnsTheLatent) {
  JobSpec spec;
  spec.model_name = spec.dataset = "digits";
  spec.experts = 2;
  spec.training.steps = 1;
  spec.router_training = spec.training;
  spec.frozen = Good();
  const DatasetFacts facts{.training_samples = 100, .classes = 10, .channels = 1, .height = 8, .width = 8};
  EXPECT_TRUE(Validate(spec, &facts).ok()) << Validate(spec, &facts);
  spec.model.patch = 8;  // divides the image, not the latent
  EXPECT_EQ(ErrorField(Validate(spec, &facts)), "model.patch");
}

TEST(FrozenTest, AListThatIsNoneIsNamed) {
  EXPECT_EQ(ErrorField(ParseJobSpec("frozen: 3\n").status()), "frozen");
  EXPECT_EQ(ErrorField(ParseJobSpec("frozen: [{layers: [{kindd: norm}]}]\n").status()), "frozen[0].layers[0].kindd");
  EXPECT_EQ(ErrorField(ParseJobSpec("frozen: [{shape: [1, x]}]\n").status()), "frozen[0].shape[1]");
}

}  // namespace
}  // namespace atl::spec
