// For tests: the exact marginal velocity and the exact posterior of a finite set of points, as finite sums (DDM eq. 1
// to 7). points [m, d], x [n, d], t [n] in (0, 1].
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

namespace atl::model {

// Posterior of every point given x_t and t: softmax over points of -|x - (1 - t) x0|^2 / (2 t^2). [n, m], float64.
inline at::Tensor PointPosterior(const at::Tensor& points, const at::Tensor& x, const at::Tensor& t) {
  const at::Tensor time = t.to(at::kDouble).view({-1, 1, 1});
  const at::Tensor means = (1 - time) * points.to(at::kDouble).unsqueeze(0);
  const at::Tensor squares = (x.to(at::kDouble).unsqueeze(1) - means).square().sum(-1);
  return at::softmax(-squares / (2 * time.squeeze(-1).square()), 1);
}

// [n, d], float64.
inline at::Tensor ExactVelocity(const at::Tensor& points, const at::Tensor& x, const at::Tensor& t) {
  const at::Tensor posterior = PointPosterior(points, x, t);
  // Given the point, eps = (x - (1 - t) x0) / t, so the velocity eps - x0 is (x - x0) / t; it is linear in x0.
  return (x.to(at::kDouble) - at::matmul(posterior, points.to(at::kDouble))) / t.to(at::kDouble).view({-1, 1});
}

// cluster_of [m] int64 in 0 .. k - 1 -> [n, k], rows sum to one. Includes cluster mass.
inline at::Tensor ExactPosterior(const at::Tensor& points, const at::Tensor& cluster_of, int64_t k, const at::Tensor& x,
                                 const at::Tensor& t) {
  const at::Tensor posterior = PointPosterior(points, x, t);
  return at::zeros({x.size(0), k}, at::kDouble).index_add(1, cluster_of, posterior);
}

}  // namespace atl::model
