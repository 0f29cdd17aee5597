#include "common/model/testing.h"

#include <cmath>

namespace atl::model {
namespace {

TEST(IsNearTest, RoundingOfTheGreatestValuePassesAndMoreDoesNot) {
  const at::Tensor expected = at::cat({at::linspace(-14.8, 14.8, 50), at::tensor({1e-4F})});
  at::Tensor rounded = expected.clone();
  rounded[50] += 14.8 * 4e-6;
  EXPECT_FALSE(at::allclose(rounded, expected, 1e-4, 1e-5)) << "element by element it would fail";
  EXPECT_TRUE(IsNear(rounded, expected));
  EXPECT_TRUE(IsNear(expected, expected, 0));
  at::Tensor broken = expected.clone();
  broken[7] += 14.8 * 1e-3;
  EXPECT_FALSE(IsNear(broken, expected));
  EXPECT_FALSE(IsNear(broken + std::nan(""), expected));
  EXPECT_FALSE(IsNear(expected.slice(0, 1), expected));
  EXPECT_TRUE(IsNear(at::zeros({3}), at::zeros({3})));
  EXPECT_FALSE(IsNear(at::full({3}, 1e-6), at::zeros({3})));
}

}  // namespace
}  // namespace atl::model
