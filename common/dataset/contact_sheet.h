// Contact sheets: rows of small images with a label before each row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"

namespace atl::dataset {

struct SheetRow {
  std::string label;  // may be empty
  std::vector<Image> images;
};

struct SheetOptions {
  std::string title;  // may be empty
  // Images are enlarged by the largest whole factor that keeps their longer side within this, at least 1.
  int32_t cell_pixels = 48;
  // Further images of a row wrap below it; 0: one line per row.
  int32_t columns = 0;
};

// Draws a colour picture. Grey and colour images of any sizes may be mixed. Labels and title use a built-in font
// (printable ASCII; other characters appear as boxes) and are cut after 40 characters. INVALID_ARGUMENT if there is no
// image, one is malformed, or the sheet would exceed 64 megapixels.
absl::StatusOr<Image> DrawContactSheet(const std::vector<SheetRow>& rows, const SheetOptions& options = {});

}  // namespace atl::dataset
