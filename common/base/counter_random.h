// Counter-based randomness: every random number of training and sampling is a pure function of (seed, purpose, step,
// sample). There is no stream to save, and any rank that asks gets the same bits.
//
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace atl {

// One purpose per kind of sample, so that two kinds never share bits. Values are part of exact resume: never reuse one.
enum class RandomPurpose : uint32_t {
  kShuffle = 1,            // order of samples in an epoch
  kNoise = 2,              // diffusion noise of a training sample
  kTime = 3,               // diffusion time of a training sample
  kClassDropout = 4,       // whether the class is replaced by the null class
  kFlip = 5,               // horizontal flip
  kInitialise = 6,         // initial weights; sample = layer, step = parameter
  kSampleNoise = 7,        // starting noise of a generated image
  kCluster = 8,            // initial centroids and mini-batches of k-means
  kHeldOut = 9,            // held-out split, by sample hash
  kSubset = 10,            // other reproducible subsets
  kLatent = 11,            // sampling of latents from an encoder's distribution
  kSelfConditioning = 12,  // whether a step's model sees its own estimate; sample = 0
  kArrivals = 13,          // times between the requests of a load
};

// The key of one sequence of random numbers. Cheap to copy; immutable; thread-safe.
class CounterRandom {
 public:
  CounterRandom(uint64_t seed, RandomPurpose purpose, uint64_t step, uint64_t sample);

  // Four 32-bit words of block `block`.
  std::array<uint32_t, 4> Block(uint32_t block) const;

  // Uniform in [0, 1), 24 bits, element `i` of the sequence.
  float Uniform(uint32_t i = 0) const;
  // Uniform in [0, n); n > 0. Bias below n / 2^64.
  uint64_t Below(uint64_t n, uint32_t i = 0) const;
  // 64 random bits.
  uint64_t Bits64(uint32_t i = 0) const;

  // Standard normal numbers (Box-Muller, in double, rounded to float). Element i depends on i only, not on the length.
  void Normal(std::span<float> out) const;
  void Uniform(std::span<float> out) const;

 private:
  std::array<uint32_t, 2> key_;
  std::array<uint32_t, 3> counter_;
};

}  // namespace atl
