#include "common/dataset/quality.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace atl::dataset {
namespace {

TEST(NearestNeighbourAccuracyTest, CountsMajoritiesOfTheNearest) {
  // On a line: class 0 at 0, 1, 2; class 1 at 10, 11, 12.
  const std::vector<float> reference = {0, 1, 2, 10, 11, 12};
  const std::vector<int32_t> reference_labels = {0, 0, 0, 1, 1, 1};
  const std::vector<float> samples = {0.5F, 11.5F, 1.5F, 10.5F};
  const std::vector<int32_t> labels = {0, 1, 1, 1};
  EXPECT_DOUBLE_EQ(NearestNeighbourAccuracy({samples, 1}, labels, {reference, 1}, reference_labels, 3).value(), 0.75);
  // With all six as neighbours the classes tie, and the nearest image decides.
  EXPECT_DOUBLE_EQ(NearestNeighbourAccuracy({samples, 1}, labels, {reference, 1}, reference_labels, 6).value(), 0.75);
}

TEST(NearestNeighbourAccuracyTest, SizesThatDoNotFitAreRefused) {
  const std::vector<float> points = {0, 1, 2, 3};
  const std::vector<int32_t> labels = {0, 1};
  EXPECT_FALSE(NearestNeighbourAccuracy({points, 2}, labels, {points, 2}, labels, 3).ok());
  EXPECT_FALSE(NearestNeighbourAccuracy({points, 1}, labels, {points, 1}, labels, 1).ok());
  EXPECT_FALSE(NearestNeighbourAccuracy({points, 3}, labels, {points, 3}, labels, 1).ok());
  EXPECT_FALSE(NearestNeighbourAccuracy({points, 2}, labels, {points, 1}, labels, 1).ok());
  EXPECT_FALSE(NearestNeighbourAccuracy({points, 0}, labels, {points, 0}, labels, 1).ok());
}

TEST(UnbiasedMmd2Test, EqualsTheValueComputedByHand) {
  // d = 2. x = {(1,0), (0,1)}: k(x1,x2) = (0/2+1)^3 = 1. y = {(1,1), (-1,1)}: k = 1.
  // Between: (1,0).(1,1) = 1 -> 1.5^3 = 3.375; (1,0).(-1,1) = -1 -> 0.125; (0,1).(1,1) and (0,1).(-1,1) = 1 -> 3.375.
  const std::vector<float> x = {1, 0, 0, 1};
  const std::vector<float> y = {1, 1, -1, 1};
  const double between = (3.375 + 0.125 + 3.375 + 3.375) / 4;
  EXPECT_NEAR(UnbiasedMmd2({x, 2}, {y, 2}).value(), 1 + 1 - 2 * between, 1e-12);
}

TEST(UnbiasedMmd2Test, IsNearZeroForOneDistributionAndLargeForTwo) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.5F);
  const auto draw = [&](float shift) {
    std::vector<float> points(400 * 4);
    for (float& value : points) value = normal(random) + shift;
    return points;
  };
  const std::vector<float> a = draw(0);
  const std::vector<float> b = draw(0);
  const std::vector<float> c = draw(0.5F);
  EXPECT_LT(std::abs(UnbiasedMmd2({a, 4}, {b, 4}).value()), 0.03);
  EXPECT_GT(UnbiasedMmd2({a, 4}, {c, 4}).value(), 0.5);
  EXPECT_FALSE(UnbiasedMmd2({std::span(a).first(4), 4}, {b, 4}).ok());
}

TEST(DiversityTest, EqualsWhatWasCountedByHand) {
  // Real balls, one neighbour each: 0 and 1 reach 1, 10 and 12 reach 2. Samples 0.5 and 0.75 reach 0.25, 20
  // reaches 19.25.
  const std::vector<float> real = {0, 1, 10, 12};
  const std::vector<float> samples = {0.5F, 0.75F, 20};
  const Diversity diversity = MeasureDiversity({samples, 1}, {real, 1}, 1).value();
  EXPECT_DOUBLE_EQ(diversity.density, 4.0 / 3);  // 0.5 and 0.75 lie in the balls of 0 and of 1
  EXPECT_DOUBLE_EQ(diversity.coverage, 0.5);
  EXPECT_DOUBLE_EQ(diversity.recall, 0.75);  // 1, 10 and 12 in the ball of 20; the ball of 0.75 ends short of 1
  EXPECT_FALSE(MeasureDiversity({samples, 1}, {real, 1}, 3).ok()) << "each needs k others";
}

TEST(DiversityTest, TellsCollapseBlurAndNoiseFromTheDistributionItself) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  constexpr int kDimension = 16;
  const auto draw = [&](int images, float scale, int repeats) {
    std::vector<float> points(images * kDimension);
    for (float& value : points) value = scale * normal(random);
    std::vector<float> all;
    for (int i = 0; i < repeats; ++i) all.insert(all.end(), points.begin(), points.end());
    return all;
  };
  const std::vector<float> real = draw(200, 1, 1);
  const auto measure = [&](const std::vector<float>& samples) {
    return MeasureDiversity({samples, kDimension}, {real, kDimension}).value();
  };
  const Diversity same = measure(draw(400, 1, 1));
  EXPECT_NEAR(same.density, 1, 0.15);
  EXPECT_GT(same.coverage, 0.9);
  EXPECT_GT(same.recall, 0.8);
  EXPECT_EQ(measure(draw(10, 1, 40)).recall, 0) << "ten images, forty times each";
  const Diversity blurred = measure(draw(400, 0.5, 1));
  EXPECT_GT(blurred.density, 1.5);
  EXPECT_LT(blurred.recall, 0.3);
  EXPECT_LT(measure(draw(400, 1.5, 1)).density, 0.5);
}

TEST(MemorisationTest, RepeatedTrainingImagesFallFarBelowTheBaseline) {
  const std::vector<float> training = {0, 1, 2, 3};
  const std::vector<float> held_out = {0.5F, 1.5F, 2.5F};
  // Held-out images lie 0.5 from training and 1 from each other.
  const auto fresh = MeasureMemorisation({held_out, 1}, {training, 1}, {held_out, 1}).value();
  EXPECT_DOUBLE_EQ(fresh.baseline_ratio, 0.5);
  const auto copied = MeasureMemorisation({training, 1}, {training, 1}, {held_out, 1}).value();
  EXPECT_DOUBLE_EQ(copied.median_ratio, 0);
  const std::vector<float> between = {0.75F};
  EXPECT_DOUBLE_EQ(MeasureMemorisation({between, 1}, {training, 1}, {held_out, 1}).value().median_ratio, 1);
}

}  // namespace
}  // namespace atl::dataset
