// Images that drawing starts from (--init).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"

namespace atl::client {

struct ImageShape {
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
};

// The image as the model draws: grey or colour, and where the model's images are squares of another size, cropped and
// scaled. INVALID_ARGUMENT, reason INIT_SHAPE, names `where` when it cannot be made to fit.
absl::StatusOr<dataset::Image> FitImage(dataset::Image image, const ImageShape& shape, const std::string& where);

// What a request takes for each of `paths` (PNG, JPEG or WebP), or for each image of the one folder of samples that
// they name: PNG, or with `raw` float32 [channels][height][width] in [-1, 1]. NOT_FOUND or INVALID_ARGUMENT name the
// file.
absl::StatusOr<std::vector<std::string>> ReadInitImages(const std::vector<std::string>& paths, const ImageShape& shape,
                                                        bool raw);

}  // namespace atl::client
