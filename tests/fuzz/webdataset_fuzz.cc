// WebDataset tars.
#include <cstdint>
#include <string>

#include "tests/fuzz/drain_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::dataset;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  DrainSource(MakeWebDatasetSource(
      {"fuzz.tar"},
      [bytes](const std::string&) -> absl::StatusOr<std::unique_ptr<InputStream>> { return OpenInputMemory(bytes); }));
  return 0;
}
