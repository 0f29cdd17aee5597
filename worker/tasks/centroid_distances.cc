#include "worker/tasks/centroid_distances.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace atl::tasks {

CentroidDistances::CentroidDistances(std::span<const float> centroids, int32_t dims, const std::string& device)
    : dims_(dims) {
  const int64_t count = static_cast<int64_t>(centroids.size()) / dims_;
  const at::Tensor values = at::from_blob(const_cast<float*>(centroids.data()), {count, dims_}, at::kFloat);
  std::map<std::string_view, int64_t> seen;
  std::vector<int64_t> first_equal;
  for (int64_t c = 0; c < count; ++c) {
    const std::string_view bytes(reinterpret_cast<const char*>(&centroids[c * dims_]), dims_ * sizeof(float));
    first_equal.push_back(seen.emplace(bytes, c).first->second);
  }
  mean_ = values.mean(0).to(device);
  centroids_ = (values.to(device) - mean_).t().contiguous();
  norms_ = centroids_.square().sum(0);
  first_equal_ = at::tensor(first_equal, at::kLong).to(device);
}

at::Tensor CentroidDistances::Block(std::span<const float> rows, int64_t first) const {
  const int64_t count = std::min(kBlock, static_cast<int64_t>(rows.size()) / dims_ - first);
  const auto part = rows.subspan(first * dims_, count * dims_);
  at::Tensor block = at::zeros({kBlock, dims_}, mean_.options());
  block.narrow(0, 0, count).copy_(at::from_blob(const_cast<float*>(part.data()), {count, dims_}, at::kFloat));
  block.narrow(0, 0, count).sub_(mean_);
  return block;
}

std::vector<double> CentroidDistances::Squared(std::span<const float> rows) const {
  const int64_t count = static_cast<int64_t>(rows.size()) / dims_;
  const int64_t columns = norms_.size(0);
  std::vector<double> squared(count * columns);
  for (int64_t first = 0; first < count; first += kBlock) {
    const at::Tensor block = Block(rows, first);
    const at::Tensor distances =
        at::addmm(norms_, block, centroids_, 1, -2).add_(block.square().sum(1, true)).clamp_min_(0);
    const int64_t size = std::min(kBlock, count - first);
    at::from_blob(&squared[first * columns], {size, columns}, at::kDouble).copy_(distances.narrow(0, 0, size));
  }
  return squared;
}

std::vector<int32_t> CentroidDistances::Nearest(std::span<const float> rows) const {
  const int64_t count = static_cast<int64_t>(rows.size()) / dims_;
  std::vector<int32_t> nearest(count);
  for (int64_t first = 0; first < count; first += kBlock) {
    // A row's own norm is the same for every centroid.
    const at::Tensor least = at::addmm(norms_, Block(rows, first), centroids_, 1, -2).argmin(1);
    const int64_t size = std::min(kBlock, count - first);
    at::from_blob(&nearest[first], {size}, at::kInt).copy_(first_equal_.index_select(0, least).narrow(0, 0, size));
  }
  return nearest;
}

}  // namespace atl::tasks
