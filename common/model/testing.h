// For tests: compares numbers up to rounding.
#pragma once

#include <ATen/ATen.h>

#include "gtest/gtest.h"

namespace atl::model {

// Returns whether the greatest difference is at most `share` of the greatest expected value. Instruction sets, batches
// and devices sum in different orders. The rounding of the greatest terms then reaches every element, also those near
// zero, so no element is compared with itself alone.
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
