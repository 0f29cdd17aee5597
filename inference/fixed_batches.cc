#include "inference/fixed_batches.h"

#include <algorithm>

namespace atl::router {

std::vector<FixedBatch> CutIntoFixedBatches(int64_t rows, std::span<const int64_t> sizes) {
  std::vector<FixedBatch> batches;
  for (int64_t begin = 0; begin < rows;) {
    const int64_t left = rows - begin;
    const auto above = std::upper_bound(sizes.begin(), sizes.end(), left);
    const int64_t size = above == sizes.begin() ? sizes.front() : *(above - 1);
    const int64_t count = std::min(size, left);
    batches.push_back({.begin = begin, .count = count, .size = size});
    begin += count;
  }
  return batches;
}

}  // namespace atl::router
