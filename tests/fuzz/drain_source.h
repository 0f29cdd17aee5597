// Reads an importer's source to its end, as an import would.
#pragma once

#include <cstdlib>
#include <memory>

#include "absl/status/statusor.h"
#include "common/dataset/import_source.h"

namespace atl::dataset {

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
