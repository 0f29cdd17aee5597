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
  Linear(x, leaves.weight, leaves.bias).sum().backward();
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

// x, shift, scale or gate, and another input of the sum.
std::vector<at::Tensor> AdaptiveLeaves(at::ScalarType dtype) {
  at::manual_seed(5);
  std::vector<at::Tensor> leaves;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{3, 8, 48}, {3, 48}, {3, 48}, {3, 8, 48}}) {
    leaves.push_back(at::randn(shape).to(dtype).requires_grad_());
  }
  return leaves;
}

void ExpectSameLeafGradients(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].grad().defined(), b[i].grad().defined()) << i;
    if (a[i].grad().defined()) EXPECT_TRUE(at::equal(a[i].grad(), b[i].grad())) << i;
  }
}

TEST(NormModulateTest, GradientsEqualStockAutogradBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> stock = AdaptiveLeaves(dtype);
    const std::vector<at::Tensor> ours = AdaptiveLeaves(dtype);
    for (const bool residual : {false, true}) {
      at::Tensor expected =
          at::addcmul(stock[1].unsqueeze(1), at::layer_norm(stock[0], {48}, {}, {}, 1e-6), stock[2].unsqueeze(1) + 1);
      Modulated found = NormModulate(ours[0], ours[1], ours[2]);
      EXPECT_TRUE(at::equal(expected, found.out));
      if (residual) {
        expected = expected * stock[3] + stock[0];
        found.out = found.out * ours[3] + found.residual;
      }
      expected.square().sum().backward();
      found.out.square().sum().backward();
      ExpectSameLeafGradients(stock, ours);
    }
  }
}

TEST(GatedAddTest, GradientsEqualStockAutogradBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> stock = AdaptiveLeaves(dtype);
    const std::vector<at::Tensor> ours = AdaptiveLeaves(dtype);
    const at::Tensor expected = at::addcmul(stock[0], stock[1].unsqueeze(1), stock[3]);
    const at::Tensor found = GatedAdd(ours[0], ours[1], ours[3]);
    EXPECT_TRUE(at::equal(expected, found));
    expected.square().sum().backward();
    found.square().sum().backward();
    ExpectSameLeafGradients(stock, ours);
  }
}

TEST(AdaptiveTest, WithoutGradModeNoGraphIsRecorded) {
  const std::vector<at::Tensor> leaves = AdaptiveLeaves(at::kFloat);
  const at::Tensor out = NormModulate(leaves[0], leaves[1], leaves[2]).out;
  const at::Tensor sum = GatedAdd(leaves[0], leaves[1], leaves[3]);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(NormModulate(leaves[0], leaves[1], leaves[2]).out, out));
  const at::Tensor plain = GatedAdd(leaves[0], leaves[1], leaves[3]);
  EXPECT_TRUE(at::equal(plain, sum));
  EXPECT_FALSE(plain.requires_grad());
}

}  // namespace
}  // namespace atl::model
