// Files in memory for the importers, and a function that reads a source to its end, as an import does.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/dataset/import/import_source.h"

namespace atl::dataset {

class MemoryInput : public InputStream {
 public:
  explicit MemoryInput(std::string_view bytes) : rest_(bytes) {}

  absl::StatusOr<size_t> Read(char* buffer, size_t size) override {
    const size_t got = std::min(size, rest_.size());
    if (got > 0) std::memcpy(buffer, rest_.data(), got);
    rest_.remove_prefix(got);
    return got;
  }

 private:
  std::string_view rest_;
};

// The caller keeps `bytes` alive.
inline std::unique_ptr<InputStream> OpenInputMemory(std::string_view bytes) {
  return std::make_unique<MemoryInput>(bytes);
}

inline void DrainSource(absl::StatusOr<std::unique_ptr<Source>> source) {
  constexpr int kMostRows = 10'000;
  if (!source.ok()) return;
  (void)(*source)->classes();
  for (int i = 0; i < kMostRows; ++i) {
    SourceRow row;
    const auto more = (*source)->Next(&row);
    if (!more.ok() || !*more) return;
    // Encoded bytes, even none, are judged when they are decoded (image_fuzz).
    if (row.image.has_value() &&
        row.image->pixels.size() != static_cast<size_t>(row.image->channels) * row.image->height * row.image->width) {
      std::abort();
    }
  }
}

}  // namespace atl::dataset
