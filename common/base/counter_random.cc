#include "common/base/counter_random.h"

#include <cmath>

namespace atl {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53;
constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;

std::array<uint32_t, 4> Philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// SplitMix64's finaliser: a bijection of 64 bits that spreads every input bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

float ToUniform(uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1.0p-24F;
}

}  // namespace

// The key takes seed, purpose and the upper half of step; the counter takes the sample, the step's lower half and the
// block number. Distinct (step, sample) below 2^32 steps never collide for one (seed, purpose).
CounterRandom::CounterRandom(uint64_t seed, RandomPurpose purpose, uint64_t step, uint64_t sample) {
  const uint64_t key = Mix(Mix(seed + 0x9E3779B97F4A7C15ULL * static_cast<uint32_t>(purpose)) ^ (step >> 32));
  key_ = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  counter_ = {static_cast<uint32_t>(step), static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)};
}

std::array<uint32_t, 4> CounterRandom::Block(uint32_t block) const {
  return Philox4x32_10({block, counter_[0], counter_[1], counter_[2]}, key_);
}

float CounterRandom::Uniform(uint32_t i) const {
  return ToUniform(Block(i / 4)[i % 4]);
}

uint64_t CounterRandom::Bits64(uint32_t i) const {
  const std::array<uint32_t, 4> block = Block(i / 2);
  const uint32_t half = 2 * (i % 2);
  return static_cast<uint64_t>(block[half]) << 32 | block[half + 1];
}

uint64_t CounterRandom::Below(uint64_t n, uint32_t i) const {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(Bits64(i)) * n) >> 64);
}

void CounterRandom::Uniform(std::span<float> out) const {
  for (size_t start = 0; start < out.size(); start += 4) {
    const std::array<uint32_t, 4> block = Block(static_cast<uint32_t>(start / 4));
    for (size_t j = 0; j < 4 && start + j < out.size(); ++j) out[start + j] = ToUniform(block[j]);
  }
}

void CounterRandom::Normal(std::span<float> out) const {
  constexpr double kTwoPi = 6.283185307179586476925;
  for (size_t start = 0; start < out.size(); start += 4) {
    const std::array<uint32_t, 4> block = Block(static_cast<uint32_t>(start / 4));
    for (size_t pair = 0; pair < 4 && start + pair < out.size(); pair += 2) {
      // (0, 1]: the logarithm stays finite.
      const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(block[pair]) + 1.0) * 0x1.0p-32));
      const double angle = kTwoPi * (static_cast<double>(block[pair + 1]) * 0x1.0p-32);
      out[start + pair] = static_cast<float>(radius * std::cos(angle));
      if (start + pair + 1 < out.size()) out[start + pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  }
}

}  // namespace atl
