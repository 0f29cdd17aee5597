// Flow matching on the linear path (DDM, arXiv 2501.05450): x_t = (1 - t) x0 + t eps, velocity eps - x0; t = 0 is data.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/ATen.h>

namespace atl::model {

// One training micro-batch; every random choice is a function of (seed, step, sample).
struct NoisedBatch {
  at::Tensor x_t;      // [n, c, h, w]
  at::Tensor t;        // [n]
  at::Tensor classes;  // [n] int64, null class where dropped
  at::Tensor target;   // velocity [n, c, h, w]
};

// Returns the classes [n] int64, on the host, with the null class where the random choice drops them.
at::Tensor DropClasses(const at::Tensor& classes, std::span<const uint64_t> sequence, uint64_t seed, int64_t null_class,
                       double class_dropout);

// `sequence[i]` is sample i's position in the run (its cursor), so a repeated sample gets new noise. x0 in [-1, 1].
NoisedBatch Noise(const at::Tensor& x0, const at::Tensor& classes, std::span<const uint64_t> sequence, uint64_t seed,
                  int64_t null_class, double class_dropout);

// Returns the clean sample x0 implied by a velocity [n, c, h, w] at x_t and t [n]: x_t - t velocity.
at::Tensor EstimateOf(const at::Tensor& x_t, const at::Tensor& t, const at::Tensor& velocity);

// Returns the mean squared error over all elements, in float32.
at::Tensor FlowMatchingLoss(const at::Tensor& velocity, const at::Tensor& target);

}  // namespace atl::model
