#include "common/base/counter_random.h"

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace atl {
namespace {

TEST(CounterRandomTest, EqualKeysGiveEqualBitsAndAnyOtherFieldChangesThem) {
  const auto bits = [](uint64_t seed, RandomPurpose purpose, uint64_t step, uint64_t sample) {
    return CounterRandom(seed, purpose, step, sample).Bits64();
  };
  const uint64_t reference = bits(1, RandomPurpose::kNoise, 2, 3);
  EXPECT_EQ(reference, bits(1, RandomPurpose::kNoise, 2, 3));
  EXPECT_NE(reference, bits(2, RandomPurpose::kNoise, 2, 3));
  EXPECT_NE(reference, bits(1, RandomPurpose::kTime, 2, 3));
  EXPECT_NE(reference, bits(1, RandomPurpose::kNoise, 3, 3));
  EXPECT_NE(reference, bits(1, RandomPurpose::kNoise, 2, 4));
  EXPECT_NE(reference, bits(1, RandomPurpose::kNoise, 2 + (uint64_t{1} << 32), 3));
  EXPECT_NE(reference, bits(1, RandomPurpose::kNoise, 2, 3 + (uint64_t{1} << 32)));
}

TEST(CounterRandomTest, ElementDependsOnItsIndexAndNotOnTheLength) {
  const CounterRandom random(7, RandomPurpose::kNoise, 0, 0);
  std::vector<float> shorter(5);
  std::vector<float> longer(64);
  random.Normal(shorter);
  random.Normal(longer);
  for (size_t i = 0; i < shorter.size(); ++i) EXPECT_EQ(shorter[i], longer[i]) << i;
}

TEST(CounterRandomTest, NormalHasTheMomentsOfANormalDistribution) {
  std::vector<float> x(1 << 18);
  CounterRandom(11, RandomPurpose::kNoise, 0, 0).Normal(x);
  double mean = 0;
  double square = 0;
  double fourth = 0;
  for (const float v : x) {
    mean += v;
    square += static_cast<double>(v) * v;
    fourth += std::pow(v, 4);
  }
  const auto n = static_cast<double>(x.size());
  // Five standard errors of each estimate.
  EXPECT_NEAR(mean / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(square / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96 / n));
}

TEST(CounterRandomTest, BelowStaysBelowAndReachesEveryValue) {
  const CounterRandom random(3, RandomPurpose::kShuffle, 0, 0);
  std::set<uint64_t> seen;
  for (uint32_t i = 0; i < 1000; ++i) {
    const uint64_t value = random.Below(7, i);
    ASSERT_LT(value, 7U);
    seen.insert(value);
  }
  EXPECT_EQ(seen.size(), 7U);
}

}  // namespace
}  // namespace atl
