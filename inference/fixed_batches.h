// Rows cut into batches of a few fixed sizes, so that a row's bits do not depend on how many rows came with it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace atl::router {

struct FixedBatch {
  int64_t begin = 0;  // the first row
  int64_t count = 0;  // rows of it that are wanted
  int64_t size = 0;   // rows that are evaluated: the rest are copies
  bool operator==(const FixedBatch&) const = default;
};

// `sizes` ascending, at least one, each at least 1. The largest sizes that rows fill come first; what is left is filled
// up to the smallest size.
std::vector<FixedBatch> CutIntoFixedBatches(int64_t rows, std::span<const int64_t> sizes);

}  // namespace atl::router
