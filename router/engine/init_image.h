// Decodes the images of a request that sampling starts from. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "router/policy/request.h"

namespace atl::router {

// Decodes PNG (its pixels scaled to [-1, 1]), or float32 [channels][height][width], little endian, of unknown shape.
// Allocates at most `max_values` values. INVALID_ARGUMENT for the field `where`: INIT_IMAGE_TOO_LARGE;
// INIT_IMAGE_UNREADABLE for bytes that are no PNG, no whole number of values or not finite.
absl::StatusOr<InitImage> DecodeInitImage(std::string_view bytes, ImageFormat format, int64_t max_values,
                                          std::string_view where);

}  // namespace atl::router
