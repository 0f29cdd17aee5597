#include "common/model/flow_matching.h"

#include <gtest/gtest.h>

#include "common/model/flow_matching_testing.h"

namespace atl::model {
namespace {

// Central difference of log p_t at x, straight from the definition of the mixture, without a softmax.
at::Tensor ScoreByDifferences(const at::Tensor& points, const at::Tensor& x, const at::Tensor& t) {
  const auto log_density = [&](const at::Tensor& at_x) {
    const at::Tensor time = t.view({-1, 1, 1});
    const at::Tensor distance = (at_x.unsqueeze(1) - (1 - time) * points.unsqueeze(0)).square().sum(-1);
    return at::logsumexp(-distance / (2 * time.squeeze(-1).square()), {1});
  };
  constexpr double kStep = 1e-5;
  std::vector<at::Tensor> columns;
  for (int64_t d = 0; d < x.size(1); ++d) {
    at::Tensor shift = at::zeros_like(x);
    shift.select(1, d).fill_(kStep);
    columns.push_back((log_density(x + shift) - log_density(x - shift)) / (2 * kStep));
  }
  return at::stack(columns, 1);
}

struct SixteenPoints {
  at::Tensor points, cluster_of, x, t;
};

SixteenPoints MakePoints() {
  at::manual_seed(11);
  SixteenPoints data;
  data.points = at::randn({16, 3}, at::kDouble);
  data.cluster_of = at::arange(16, at::kLong).remainder(5).clamp_max(3);  // clusters of unequal mass
  data.x = at::randn({64, 3}, at::kDouble);
  data.t = at::linspace(0.02, 1.0, 64, at::kDouble);
  return data;
}

TEST(ExactFlowTest, ExpertsWeightedByThePosteriorEqualTheGlobalFlow) {
  const SixteenPoints data = MakePoints();
  const at::Tensor posterior = ExactPosterior(data.points, data.cluster_of, 4, data.x, data.t);
  EXPECT_LT((posterior.sum(1) - 1).abs().max().item<double>(), 1e-12);
  at::Tensor blended = at::zeros_like(data.x);
  for (int64_t k = 0; k < 4; ++k) {
    const at::Tensor expert = ExactVelocity(data.points.index({data.cluster_of == k}), data.x, data.t);
    blended += posterior.select(1, k).unsqueeze(1) * expert;
  }
  const at::Tensor global = ExactVelocity(data.points, data.x, data.t);
  EXPECT_LT((blended - global).abs().max().item<double>(), 1e-5);
}

// The marginal velocity follows from the score: u = -(x + t score) / (1 - t).
TEST(ExactFlowTest, GlobalFlowAgreesWithTheScoreOfTheMixture) {
  SixteenPoints data = MakePoints();
  data.t = at::linspace(0.3, 0.9, 64, at::kDouble);
  const at::Tensor score = ScoreByDifferences(data.points, data.x, data.t);
  const at::Tensor time = data.t.unsqueeze(1);
  const at::Tensor from_score = -(data.x + time * score) / (1 - time);
  EXPECT_LT((ExactVelocity(data.points, data.x, data.t) - from_score).abs().max().item<double>(), 1e-5);
}

TEST(ExactFlowTest, PosteriorBecomesTheClusterMassAtPureNoise) {
  const at::Tensor points = at::randn({16, 3}, at::kDouble) * 1e-3;
  const at::Tensor cluster_of = at::arange(16, at::kLong).remainder(5).clamp_max(3);
  const at::Tensor posterior = ExactPosterior(points, cluster_of, 4, at::randn({8, 3}, at::kDouble), at::ones({8}));
  const at::Tensor mass = at::bincount(cluster_of).to(at::kDouble) / 16;
  EXPECT_LT((posterior - mass).abs().max().item<double>(), 1e-2);
}

TEST(NoiseTest, EverySampleIsNoisedByItsPositionInTheRunNotByItsSlot) {
  const at::Tensor x0 = at::randn({4, 1, 4, 4});
  const at::Tensor classes = at::arange(4, at::kLong);
  const std::vector<uint64_t> sequence = {10, 11, 12, 13};
  const NoisedBatch batch = Noise(x0, classes, sequence, 5, 9, 0.5);
  const std::vector<uint64_t> reversed = {13, 12, 11, 10};
  const NoisedBatch other = Noise(x0.flip(0), classes.flip(0), reversed, 5, 9, 0.5);
  EXPECT_TRUE(at::equal(batch.x_t, other.x_t.flip(0)));
  EXPECT_TRUE(at::equal(batch.t, other.t.flip(0)));
  EXPECT_TRUE(at::equal(batch.classes, other.classes.flip(0)));
  const std::vector<uint64_t> later = {20, 21, 22, 23};
  EXPECT_FALSE(at::equal(batch.t, Noise(x0, classes, later, 5, 9, 0.5).t));
}

TEST(NoiseTest, InputAndTargetLieOnTheLinearPath) {
  const at::Tensor x0 = at::randn({8, 2, 4, 4});
  const std::vector<uint64_t> sequence = {0, 1, 2, 3, 4, 5, 6, 7};
  const NoisedBatch batch = Noise(x0, at::zeros({8}, at::kLong), sequence, 5, 1, 0.0);
  EXPECT_LT((EstimateOf(batch.x_t, batch.t, batch.target) - x0).abs().max().item<double>(), 1e-5);
  EXPECT_LT((batch.target + x0).mean().abs().item<double>(), 0.3);  // the noise is centred
}

TEST(NoiseTest, ClassDropoutTurnsTheStatedShareIntoTheNullClass) {
  std::vector<uint64_t> sequence(4000);
  for (size_t i = 0; i < sequence.size(); ++i) sequence[i] = i;
  const at::Tensor classes = at::zeros({4000}, at::kLong);
  const at::Tensor dropped = Noise(at::zeros({4000, 1, 1, 1}), classes, sequence, 1, 10, 0.1).classes;
  EXPECT_NEAR((dropped == 10).to(at::kDouble).mean().item<double>(), 0.1, 0.02);
  EXPECT_TRUE(at::equal(Noise(at::zeros({4000, 1, 1, 1}), classes, sequence, 1, 10, 0.0).classes, classes));
}

}  // namespace
}  // namespace atl::model
