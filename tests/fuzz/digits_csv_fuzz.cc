// scikit-learn's digits as CSV.
#include <cstdint>

#include "tests/fuzz/drain_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::dataset;
  DrainSource(MakeDigitsCsvSource(OpenInputMemory({reinterpret_cast<const char*>(data), size}), "fuzz"));
  return 0;
}
