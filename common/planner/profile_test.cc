#include "common/planner/profile.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"

namespace atl::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const spec::ModelSpec kModel{.patch = 2, .width = 256, .depth = 8, .heads = 4, .mlp_ratio = 4};

std::vector<LayerProfile> Counted(const spec::ModelSpec& model) {
  return LayersAt(CountedProfile(model, /*tokens=*/64, /*channels=*/1), 1);
}

TEST(CountedProfile, OnePerLayerEmbeddingAndHeadAreCheap) {
  const auto layers = Counted(kModel);
  ASSERT_EQ(layers.size(), 10u);
  EXPECT_LT(layers.front().forward_seconds, 0.05 * layers[1].forward_seconds);
  EXPECT_LT(layers.back().forward_seconds, 0.05 * layers[1].forward_seconds);
  EXPECT_EQ(layers[1].forward_seconds, layers[8].forward_seconds);
  EXPECT_TRUE(CheckProfile(CountedProfile(kModel, 64, 1)).ok());
}

TEST(CountedProfile, ASelfConditionedModelEmbedsItsEstimateToo) {
  spec::ModelSpec model = kModel;
  model.self_conditioning = true;
  const Profile with = CountedProfile(model, 64, 1);
  const Profile without = CountedProfile(kModel, 64, 1);
  EXPECT_GT(LayersAt(with, 1).front().forward_seconds, LayersAt(without, 1).front().forward_seconds);
  EXPECT_EQ(LayersAt(with, 1).back(), LayersAt(without, 1).back());
  const double patch = kModel.patch * kModel.patch;
  EXPECT_EQ(with.parameter_bytes.front(), without.parameter_bytes.front() + patch * kModel.width * 4);
}

TEST(CountedProfile, BackwardOfABlockIsTwiceItsForward) {
  const LayerProfile block = Counted(kModel)[1];
  EXPECT_NEAR(block.input_gradient_seconds + block.weight_gradient_seconds, 2 * block.forward_seconds,
              1e-9 * block.forward_seconds);
  EXPECT_NEAR(block.backward_seconds, 2 * block.forward_seconds, 1e-9 * block.forward_seconds);
  // Attention has no weights.
  EXPECT_GT(block.input_gradient_seconds, block.weight_gradient_seconds);
}

TEST(CountedProfile, BlocksGrowWithTheSquareOfTheWidth) {
  spec::ModelSpec wide = kModel;
  wide.width *= 2;
  const double ratio = Counted(wide)[1].forward_seconds / Counted(kModel)[1].forward_seconds;
  EXPECT_GT(ratio, 3.8);
  EXPECT_LE(ratio, 4.0);
}

Profile Measured() {
  Profile profile;
  profile.parameter_bytes = {8};
  profile.layers[2] = {{.forward_seconds = 3, .kept_bytes = 20, .weight_gradient_bytes = 10}};
  profile.layers[6] = {{.forward_seconds = 5, .kept_bytes = 60, .weight_gradient_bytes = 30}};
  profile.frozen = {{.name = "vae", .layers = {{.seconds = {{1, 2.0}, {4, 5.0}}}}},
                    {.name = "head", .reads = {0}, .layers = {{.seconds = {{4, 8.0}}}}}};
  return profile;
}

TEST(LayersAt, MeasuredSizesAreAsMeasuredAndOthersOnALine) {
  const Profile profile = Measured();
  const std::vector<std::pair<int32_t, double>> cases = {{2, 3}, {6, 5}, {4, 4}, {1, 2.5}, {8, 6}};
  for (const auto& [samples, seconds] : cases) {
    EXPECT_DOUBLE_EQ(LayersAt(profile, samples)[0].forward_seconds, seconds) << samples;
  }
  EXPECT_DOUBLE_EQ(LayersAt(profile, 3)[0].kept_bytes, 30);
  EXPECT_DOUBLE_EQ(LayersAt(profile, 3)[0].weight_gradient_bytes, 15);
}

TEST(LayersAt, OneSizeIsInProportion) {
  Profile profile = Measured();
  profile.layers.erase(6);
  EXPECT_DOUBLE_EQ(LayersAt(profile, 8)[0].forward_seconds, 12);
}

TEST(FrozenSeconds, OnALineOrInProportion) {
  const Profile profile = Measured();
  EXPECT_DOUBLE_EQ(FrozenSeconds(profile.frozen[0].layers[0], 2), 3);
  EXPECT_DOUBLE_EQ(FrozenSeconds(profile.frozen[0].layers[0], 8), 9);
  EXPECT_DOUBLE_EQ(FrozenSeconds(profile.frozen[1].layers[0], 1), 2);
}

TEST(TransferSeconds, LatencyAndBytes) {
  Profile profile{.transfer_latency_seconds = 0.25};
  EXPECT_EQ(TransferSeconds(profile, 1e9), 0.25);
  profile.transfer_bytes_per_second = 4;
  EXPECT_EQ(TransferSeconds(profile, 2), 0.75);
}

struct BadProfile {
  void (*change)(Profile*);
  const char* message;
};

TEST(CheckProfile, NamesWhatIsWrong) {
  ASSERT_TRUE(CheckProfile(Measured()).ok()) << CheckProfile(Measured());
  const BadProfile cases[] = {
      {[](Profile* p) { p->layers.clear(); }, "costs of at least one layer"},
      {[](Profile* p) { p->parameter_bytes.push_back(1); }, "expected parameter_bytes of 1 layers, found 2"},
      {[](Profile* p) { p->layers[6].push_back({}); }, "micro-batches of 6: expected"},
      {[](Profile* p) { p->layers[6][0].kept_bytes = -1; }, "layer 0, micro-batches of 6: expected finite numbers"},
      {[](Profile* p) { p->layers[2][0].forward_seconds = std::nan(""); }, "found nan"},
      {[](Profile* p) { p->layers[2][0].weight_gradient_bytes = 21; }, "at most kept_bytes (20), found 21"},
      {[](Profile* p) { p->frozen[1].reads = {1}; }, "frozen component 1 (head): expected to read components before"},
      {[](Profile* p) { p->frozen[0].layers.clear(); }, "at least one layer"},
      {[](Profile* p) { p->frozen[0].layers[0].seconds.clear(); }, "at least one size"},
      {[](Profile* p) { p->frozen[0].layers[0].seconds[0] = 1; }, "sizes of at least 1, found 0"},
      {[](Profile* p) { p->frozen[0].layers[0].seconds[1] = -3; }, "found -3"},
      {[](Profile* p) {
         p->rank_slowdown = {1, 0};
       },
       "rank 1: expected a slowdown above 0, found 0"},
      {[](Profile* p) { p->transfer_latency_seconds = std::numeric_limits<double>::infinity(); }, "found inf"},
  };
  for (const BadProfile& bad : cases) {
    Profile profile = Measured();
    bad.change(&profile);
    const absl::Status status = CheckProfile(profile);
    EXPECT_EQ(ErrorReason(status), "PROFILE_INVALID") << bad.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.message));
  }
}

TEST(FrozenSizes, AreTheBatchAndItsHalvesToASixteenth) {
  EXPECT_THAT(FrozenSizes(64), ElementsAre(4, 8, 16, 32, 64));
  EXPECT_THAT(FrozenSizes(6), ElementsAre(1, 3, 6));
  EXPECT_THAT(FrozenSizes(1), ElementsAre(1));
}

TEST(CountedFrozen, CountsProductsAndAFixedCostPerCall) {
  const std::vector<spec::FrozenSpec> components = {
      {.name = "stem", .layers = {{.kind = "convolution", .width = 8}, {.kind = "block"}}},
      {.name = "encoder",
       .input = "stem",
       .output = "latent",
       .layers = {{.kind = "convolution", .width = 4, .stride = 2}}},
      {.name = "labels", .input = "label", .output = "condition", .layers = {{.kind = "embedding", .width = 32}}}};
  const auto counted = CountedFrozen(components, {1, 16, 16}, /*classes=*/9, /*batch_size=*/32);
  ASSERT_EQ(counted.size(), 3u);
  EXPECT_THAT(counted[0].reads, ElementsAre());
  EXPECT_THAT(counted[1].reads, ElementsAre(0));
  const FrozenLayerProfile& block = counted[0].layers[1];
  EXPECT_EQ(block.seconds.size(), 5u);
  EXPECT_EQ(block.input_bytes, 4 * 8 * 256);
  EXPECT_EQ(block.parameter_bytes, 4 * (2 * 8 * 8 * 9 + 2 * 8));
  EXPECT_EQ(counted[1].layers[0].output_bytes, 4 * 4 * 64);
  EXPECT_EQ(counted[2].layers[0].parameter_bytes, 4 * 10 * 32);
  // Two calls with half the samples each pay the fixed cost twice.
  EXPECT_GT(2 * FrozenSeconds(block, 16), FrozenSeconds(block, 32));
  // A block is two convolutions of eight times the stem's channels; what a call costs anyway left out.
  const auto per_sample = [](const FrozenLayerProfile& layer) {
    return FrozenSeconds(layer, 32) - FrozenSeconds(layer, 31);
  };
  EXPECT_GT(per_sample(block), 3 * per_sample(counted[0].layers[0]));
  Profile profile = CountedProfile(kModel, 64, 4);
  profile.frozen = counted;
  EXPECT_TRUE(CheckProfile(profile).ok()) << CheckProfile(profile);
}

TEST(CountedFrozen, NothingWhereOneCannotBeCounted) {
  std::vector<spec::FrozenSpec> components = {
      {.name = "encoder", .output = "latent", .layers = {{.kind = "convolution", .width = 4}}},
      {.name = "labels", .input = "label", .output = "condition", .torchscript = {"file:///l.pt"}, .shape = {32}}};
  EXPECT_TRUE(CountedFrozen(components, {1, 8, 8}, 2, 8).empty());
  components.pop_back();
  EXPECT_EQ(CountedFrozen(components, {1, 8, 8}, 2, 8).size(), 1u);
}

}  // namespace
}  // namespace atl::planner
