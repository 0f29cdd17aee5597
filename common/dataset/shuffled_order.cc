#include "common/base/counter_random.h"
#include "common/dataset/dataset.h"

namespace atl::dataset {
namespace {

// Four rounds make a pseudo-random permutation; small sets profit from a few more.
constexpr uint64_t kRounds = 6;

}  // namespace

ShuffledOrder::ShuffledOrder(uint64_t seed, int64_t n) : seed_(seed), n_(n), half_bits_(1) {
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(n)) ++half_bits_;
}

// A Feistel network permutes 0 .. 4^half_bits - 1. Walking along its cycle until the value is below n permutes
// 0 .. n - 1; at most 4 values in n leave it, so that the walk is short on average.
int64_t ShuffledOrder::At(int64_t cursor) const {
  const auto epoch = static_cast<uint64_t>(cursor / n_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(cursor % n_);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = CounterRandom(seed_, RandomPurpose::kShuffle, epoch, round << 32 | right).Bits64();
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(value);
}

}  // namespace atl::dataset
