// Images that sampling starts from (--init).
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

// Converts the image to the model's format: grey or colour, and cropped and scaled if the model's images are squares of
// another size. INVALID_ARGUMENT (INIT_SHAPE), naming `where`, if the image cannot be made to fit.
absl::StatusOr<dataset::Image> FitImage(dataset::Image image, const ImageShape& shape, const std::string& where);

// Returns the init_images of a request: one for each of `paths` (PNG, JPEG or WebP), or one for each image of the
// folder of samples that `paths` names. The format is PNG or, with `raw`, float32 [channels][height][width] in [-1, 1].
// NOT_FOUND and INVALID_ARGUMENT name the file.
absl::StatusOr<std::vector<std::string>> ReadInitImages(const std::vector<std::string>& paths, const ImageShape& shape,
                                                        bool raw);

}  // namespace atl::client
