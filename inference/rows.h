// Rows that a network is evaluated on, gathered from any requests.
#pragma once

#include <cstdint>
#include <vector>

namespace atl::router {

// Independent rows: what one row yields does not depend on the others (up to the rounding of batch shapes).
struct Rows {
  int64_t count = 0;
  std::vector<float> x;          // [count][channels][height][width], the noised samples
  std::vector<float> t;          // [count], 1 noise, 0 data
  std::vector<int64_t> classes;  // [count], the null class is index SamplerInfo::classes
  // Of a self-conditioned model's experts: the estimate of the clean sample that each row is given, shaped as x.
  // Empty elsewhere, and where every row's is zero.
  std::vector<float> estimate;
  // [count], the classes of a second branch, which shares x, t and estimate; or empty. Of an Evaluation alone.
  std::vector<int64_t> null_classes;
};

}  // namespace atl::router
