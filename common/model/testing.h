// For tests: the same numbers but for rounding.
#pragma once

#include <ATen/ATen.h>

#include "gtest/gtest.h"

namespace atl::model {

// Whether the greatest difference is at most `share` of the greatest value that is expected. Instruction sets, batches
// and devices sum in other orders: the rounding of the greatest terms reaches every element, also those near zero, so
// that no element is judged against itself.
inline testing::AssertionResult IsNear(const at::Tensor& found, const at::Tensor& expected, double share = 1e-5) {
  if (found.sizes() != expected.sizes()) {
    return testing::AssertionFailure() << "expected shape " << expected.sizes() << ", found " << found.sizes();
  }
  const double greatest = expected.abs().max().item<double>();
  const double difference = (found - expected).abs().max().item<double>();
  // Written so that NaN fails.
  if (difference <= share * greatest) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected a difference of at most " << share << " of the greatest value, "
                                     << greatest << "; found " << difference << ", " << difference / greatest;
}

}  // namespace atl::model
