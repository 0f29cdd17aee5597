// Cuts rows into batches of a few fixed sizes, so that a row's bits do not depend on the number of rows. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace atl::router {

struct FixedBatch {
  int64_t begin = 0;  // the first row
  int64_t count = 0;  // its rows that the caller wants
  int64_t size = 0;   // rows to evaluate, padded with copies
  bool operator==(const FixedBatch&) const = default;
};

// `sizes` is ascending, has at least one entry, and each is at least 1. Uses the largest sizes that the rows fill
// first, and pads the rest to the smallest size.
std::vector<FixedBatch> CutIntoFixedBatches(int64_t rows, std::span<const int64_t> sizes);

}  // namespace atl::router
