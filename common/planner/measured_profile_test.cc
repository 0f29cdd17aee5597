#include "common/planner/measured_profile.h"

#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::planner {
namespace {

using ::testing::ElementsAre;

LayerProfile Layer(double seconds) {
  return {.forward_seconds = seconds,
          .input_gradient_seconds = seconds,
          .weight_gradient_seconds = seconds,
          .backward_seconds = 2 * seconds,
          .kept_bytes = 100 * seconds,
          .weight_gradient_bytes = 80 * seconds,
          .output_bytes = 8};
}

Profile TwoLayers(double scale) {
  Profile profile{.key = "k", .parameter_bytes = {10, 20}};
  profile.layers[4] = {Layer(scale), Layer(2 * scale)};
  profile.layers[8] = {Layer(2 * scale), Layer(4 * scale)};
  profile.frozen = {{.name = "encoder", .layers = {{.seconds = {{2, scale}, {4, 2 * scale}}, .input_bytes = 3}}}};
  profile.optimizer_seconds_per_byte = scale / 100;
  profile.transfer_latency_seconds = 1e-4 * scale;
  profile.transfer_bytes_per_second = 1e9 / scale;
  return profile;
}

TEST(MeasuredProfileTest, SizesFollowMicroBatchesAndReplicas) {
  EXPECT_THAT(SizesToProfile(64, 4, 1), ElementsAre(16));
  EXPECT_THAT(SizesToProfile(64, 4, 4), ElementsAre(4, 8, 16));
  EXPECT_THAT(SizesToProfile(64, 4, 3), ElementsAre(16));  // 64 has no 12 equal parts
  EXPECT_THAT(SizesToProfile(64, 0, 2), ElementsAre(2, 4, 8, 16, 32));
  EXPECT_THAT(SizesToProfile(6, 0, 2), ElementsAre(3));
  EXPECT_THAT(SizesToProfile(5, 0, 2), ElementsAre(5));
  EXPECT_THAT(SizesToProfile(5, 2, 2), ElementsAre(5));
}

TEST(MeasuredProfileTest, AMicroBatchIsForwardAndBackwardOfAllLayers) {
  EXPECT_DOUBLE_EQ(MicroBatchSeconds(TwoLayers(1), 4), 9);
  EXPECT_DOUBLE_EQ(MicroBatchSeconds(TwoLayers(1), 8), 18);
  EXPECT_EQ(MicroBatchSeconds(TwoLayers(1), 5), 0);
}

TEST(MeasuredProfileTest, MergingTakesMeansAndSaysWhoIsSlow) {
  const absl::StatusOr<Profile> merged = MergeProfiles({TwoLayers(1), TwoLayers(2)});
  ASSERT_TRUE(merged.ok()) << merged.status();
  EXPECT_DOUBLE_EQ(merged->layers.at(4)[1].forward_seconds, 3);
  EXPECT_DOUBLE_EQ(merged->frozen[0].layers[0].seconds.at(4), 3);
  EXPECT_DOUBLE_EQ(merged->optimizer_seconds_per_byte, 0.015);
  // Memory is planned for the rank that needs the most, and transfers for the slowest pair.
  EXPECT_DOUBLE_EQ(merged->layers.at(4)[1].kept_bytes, 400);
  EXPECT_DOUBLE_EQ(merged->transfer_latency_seconds, 2e-4);
  EXPECT_DOUBLE_EQ(merged->transfer_bytes_per_second, 0.5e9);
  ASSERT_EQ(merged->rank_slowdown.size(), 2u);
  EXPECT_NEAR(merged->rank_slowdown[0], 2.0 / 3, 1e-12);
  EXPECT_NEAR(merged->rank_slowdown[1], 4.0 / 3, 1e-12);
}

TEST(MeasuredProfileTest, OneRankIsAsMeasured) {
  Profile expected = TwoLayers(3);
  expected.rank_slowdown = {1};
  EXPECT_EQ(*MergeProfiles({TwoLayers(3)}), expected);
}

TEST(MeasuredProfileTest, ProfilesOfDifferentThingsDoNotMerge) {
  Profile fewer = TwoLayers(1);
  fewer.layers.at(8).pop_back();
  Profile other_size = TwoLayers(1);
  other_size.layers[16] = other_size.layers[8];
  Profile other_key = TwoLayers(1);
  other_key.key = "l";
  for (const Profile& other : {fewer, other_size, other_key}) {
    EXPECT_EQ(ErrorReason(MergeProfiles({TwoLayers(1), other}).status()), "PROFILES_DIFFER");
  }
  EXPECT_EQ(ErrorReason(MergeProfiles({}).status()), "PROFILES_DIFFER");
}

TEST(MeasuredProfileTest, ScalingChangesComputeAlone) {
  Profile profile = TwoLayers(1);
  AdjustSpeed(TwoLayers(2), &profile);
  Profile expected = TwoLayers(2);
  for (auto& [size, layers] : expected.layers) {
    for (size_t i = 0; i < layers.size(); ++i) {
      layers[i].kept_bytes /= 2;
      layers[i].weight_gradient_bytes /= 2;
    }
  }
  expected.transfer_latency_seconds /= 2;
  expected.transfer_bytes_per_second *= 2;
  EXPECT_EQ(profile, expected);
}

TEST(MeasuredProfileTest, AShortMeasurementTellsHowFastTheMachineIsNow) {
  Profile cached = TwoLayers(1);
  Profile now = TwoLayers(3);
  now.rank_slowdown = {0.9, 1.1};
  EXPECT_DOUBLE_EQ(AdjustSpeed(now, &cached), 3);
  Profile expected = TwoLayers(1);
  AdjustSpeed(TwoLayers(3), &expected);
  expected.rank_slowdown = now.rank_slowdown;
  EXPECT_EQ(cached, expected);
}

}  // namespace
}  // namespace atl::planner
