// Rows for one evaluation of a network, gathered from any number of requests.
#pragma once

#include <cstdint>
#include <vector>

namespace atl::router {

// Independent rows: apart from the rounding of batch shapes, the answer of a row does not depend on the others.
struct Rows {
  int64_t count = 0;
  std::vector<float> x;          // [count][channels][height][width], the noised samples
  std::vector<float> t;          // [count], 1 noise, 0 data
  std::vector<int64_t> classes;  // [count], the null class is index SamplerInfo::classes
  // For experts of a self-conditioned model: the estimate of the clean sample that each row receives, shaped as x.
  // Empty for all other networks, and if the estimate of every row is zero.
  std::vector<float> estimate;
  // [count], the classes of a second branch, which shares x, t and estimate; empty without one. Used in Evaluation
  // only.
  std::vector<int64_t> null_classes;
};

}  // namespace atl::router
