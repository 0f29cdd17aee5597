// Squared distances of rows to centroids as matrix products, computed by LibTorch on any device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace atl::tasks {

class CentroidDistances {
 public:
  // Rows of one matrix product. Every product has this shape, the last one padded with zeros, so that a row's distances
  // do not depend on the number of rows.
  static constexpr int64_t kBlock = 1024;

  // `centroids` [centroids][dims], at least one. `device` as LibTorch names it: "cpu", "cuda:0".
  CentroidDistances(std::span<const float> centroids, int32_t dims, const std::string& device);

  // [rows][centroids]
  std::vector<double> Squared(std::span<const float> rows) const;
  // Returns the nearest centroid of each row; among equal ones the lowest index.
  std::vector<int32_t> Nearest(std::span<const float> rows) const;

 private:
  // Returns rows [first, first + kBlock) of `rows`, less `mean_`, padded with zeros.
  at::Tensor Block(std::span<const float> rows, int64_t first) const;

  const int64_t dims_;
  at::Tensor mean_;         // [dims] of the centroids: products of values far from zero would lose the differing digits
  at::Tensor centroids_;    // [dims, centroids], less `mean_`
  at::Tensor norms_;        // [centroids], squared
  at::Tensor first_equal_;  // [centroids]: the lowest index of a centroid with the same values
};

}  // namespace atl::tasks
