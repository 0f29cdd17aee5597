// Profiles as JSON, from the blob store or a file that a user brings.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/formats/profile_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = atl::storage::ParseProfile(text, "fuzz");
  if (!parsed.ok()) return 0;
  // An accepted text must be written so that it reads back equal.
  const auto again = atl::storage::ParseProfile(atl::storage::ToJson(*parsed), "fuzz");
  if (!again.ok() || !(*again == *parsed)) std::abort();
  return 0;
}
