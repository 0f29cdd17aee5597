#include "common/model/ops.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

namespace atl::model {
namespace {

// The same computation twice: once with stock autograd, once with Atoll's operations.
struct Leaves {
  at::Tensor x, weight, bias;
};

Leaves MakeLeaves(at::IntArrayRef x, at::IntArrayRef weight, int64_t bias) {
  at::manual_seed(7);
  return {at::randn(x).requires_grad_(), at::randn(weight).requires_grad_(), at::randn({bias}).requires_grad_()};
}

Leaves Clone(const Leaves& leaves) {
  return {leaves.x.detach().clone().requires_grad_(), leaves.weight.detach().clone().requires_grad_(),
          leaves.bias.detach().clone().requires_grad_()};
}

void ExpectSameGradients(const Leaves& a, const Leaves& b) {
  EXPECT_TRUE(at::equal(a.x.grad(), b.x.grad()));
  EXPECT_TRUE(at::equal(a.weight.grad(), b.weight.grad()));
  EXPECT_TRUE(at::equal(a.bias.grad(), b.bias.grad()));
}

TEST(LinearTest, GradientsEqualStockAutogradBitForBit) {
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{8, 16}, std::vector<int64_t>{8}, std::vector<int64_t>{}}) {
    std::vector<int64_t> x_shape = rows;
    x_shape.push_back(48);
    const Leaves stock = MakeLeaves(x_shape, {32, 48}, 32);
    const Leaves ours = Clone(stock);
    for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
      at::linear(stock.x * (micro_batch + 1), stock.weight, stock.bias).square().sum().backward();
      Linear(ours.x * (micro_batch + 1), ours.weight, ours.bias).square().sum().backward();
      ExpectSameGradients(stock, ours);
    }
  }
}

TEST(LinearTest, QueuedWeightGradientsComeOnlyWhenTheQueueRuns) {
  const Leaves stock = MakeLeaves({4, 8, 48}, {32, 48}, 32);
  const Leaves ours = Clone(stock);
  at::linear(stock.x, stock.weight, stock.bias).square().sum().backward();

  WeightGradientQueue queue;
  {
    const ScopedWeightGradientQueue scoped(&queue);
    Linear(ours.x, ours.weight, ours.bias).square().sum().backward();
  }
  EXPECT_FALSE(ours.weight.grad().defined());
  EXPECT_TRUE(at::equal(stock.x.grad(), ours.x.grad()));
  EXPECT_TRUE(at::equal(stock.bias.grad(), ours.bias.grad()));
  EXPECT_FALSE(queue.empty());
  queue.RunAll();
  EXPECT_TRUE(queue.empty());
  ExpectSameGradients(stock, ours);
}

TEST(LinearTest, NestedNullQueueComputesAtOnce) {
  const Leaves ours = MakeLeaves({4, 48}, {32, 48}, 32);
  WeightGradientQueue queue;
  const ScopedWeightGradientQueue outer(&queue);
  {
    const ScopedWeightGradientQueue inner(nullptr);
    Linear(ours.x, ours.weight, ours.bias).sum().backward();
  }
  EXPECT_TRUE(ours.weight.grad().defined());
  EXPECT_TRUE(queue.empty());
}

TEST(LinearTest, AnInputWithoutGradientGetsNone) {
  Leaves leaves = MakeLeaves({4, 48}, {32, 48}, 32);
  const at::Tensor x = leaves.x.detach();
  Linear(x, leaves.weight, at::Tensor()).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  EXPECT_TRUE(leaves.weight.grad().defined());
}

TEST(LinearTest, Bfloat16ComputeKeepsFloat32GradientsAndEqualsStockCasts) {
  const Leaves stock = MakeLeaves({8, 48}, {32, 48}, 32);
  const Leaves ours = Clone(stock);
  for (int i = 0; i < 2; ++i) {
    at::linear(stock.x.to(at::kBFloat16), stock.weight.to(at::kBFloat16), stock.bias.to(at::kBFloat16))
        .to(at::kFloat)
        .sum()
        .backward();
    const at::Tensor y = Linear(ours.x, ours.weight, ours.bias, at::kBFloat16);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).sum().backward();
  }
  EXPECT_EQ(ours.weight.grad().scalar_type(), at::kFloat);
  ExpectSameGradients(stock, ours);
}

TEST(LinearTest, CastWeightsFollowInPlaceUpdates) {
  const Leaves leaves = MakeLeaves({4, 48}, {32, 48}, 32);
  const at::NoGradGuard no_grad;
  const at::Tensor before = Linear(leaves.x, leaves.weight, leaves.bias, at::kBFloat16);
  leaves.weight.mul_(2);
  leaves.bias.mul_(2);
  EXPECT_TRUE(at::equal(before * 2, Linear(leaves.x, leaves.weight, leaves.bias, at::kBFloat16)));
}

TEST(EmbeddingTest, GradientsEqualStockAutogradBitForBit) {
  at::manual_seed(3);
  const at::Tensor stock = at::randn({11, 16}).requires_grad_();
  const at::Tensor ours = stock.detach().clone().requires_grad_();
  const at::Tensor ids = at::randint(11, {32}, at::kLong);
  const at::Tensor weight = at::randn({32, 16});
  for (int i = 0; i < 3; ++i) {
    (at::embedding(stock, ids) * weight).sum().backward();
    WeightGradientQueue queue;
    const ScopedWeightGradientQueue scoped(&queue);
    (Embedding(ids, ours) * weight).sum().backward();
    queue.RunAll();
    EXPECT_TRUE(at::equal(stock.grad(), ours.grad()));
  }
}

TEST(ConvolutionTest, GradientsEqualStockAutogradBitForBit) {
  const Leaves stock = MakeLeaves({4, 3, 8, 8}, {16, 3, 3, 3}, 16);
  const Leaves ours = Clone(stock);
  for (int i = 0; i < 3; ++i) {
    at::conv2d(stock.x, stock.weight, stock.bias, 2, 1).square().sum().backward();
    WeightGradientQueue queue;
    const ScopedWeightGradientQueue scoped(&queue);
    Convolution(ours.x, ours.weight, ours.bias, 2, 1).square().sum().backward();
    queue.RunAll();
    ExpectSameGradients(stock, ours);
  }
}

}  // namespace
}  // namespace atl::model
