// Safetensors files.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/storage/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto parsed = atl::storage::ParseSafetensors(bytes, "fuzz");
  if (!parsed.ok()) return 0;
  size_t total = 0;
  for (const atl::storage::TensorView& tensor : parsed->tensors) total += tensor.bytes.size();
  if (total > size) std::abort();
  // Accepted bytes must be written so that they read back with as many tensors.
  const auto written = atl::storage::SerializeSafetensors(parsed->tensors, parsed->metadata);
  if (!written.ok()) std::abort();
  const auto again = atl::storage::ParseSafetensors(*written, "fuzz");
  if (!again.ok() || again->tensors.size() != parsed->tensors.size() || again->metadata != parsed->metadata) {
    std::abort();
  }
  return 0;
}
