// Manifests of checkpoints.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/formats/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = atl::storage::ParseManifest(text, "fuzz");
  if (!parsed.ok()) return 0;
  // An accepted text must be written so that it reads back equal.
  const auto again = atl::storage::ParseManifest(atl::storage::ToJson(*parsed), "fuzz");
  if (!again.ok() || !(*again == *parsed)) std::abort();
  return 0;
}
