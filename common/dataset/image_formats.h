// One decoder per image format, for image_codec.cc. Each reads sizes from the header, checks them with CheckImageSize,
// and only then allocates.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"

namespace atl::dataset {

absl::StatusOr<Image> DecodePng(std::string_view bytes, std::string_view where);
absl::StatusOr<Image> DecodeJpeg(std::string_view bytes, std::string_view where);
absl::StatusOr<Image> DecodeWebp(std::string_view bytes, std::string_view where);

// INVALID_ARGUMENT (IMAGE_TOO_LARGE or IMAGE_UNREADABLE) unless the sizes are positive and within the limits.
absl::Status CheckImageSize(int64_t channels, int64_t height, int64_t width, std::string_view where);
absl::Status UnreadableImage(std::string_view where, std::string_view message);

}  // namespace atl::dataset
