// Images that sampling starts from, as they come in a request. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "router/policy/request.h"

namespace atl::router {

// PNG (its pixels scaled to [-1, 1]), or float32 [channels][height][width], little endian, whose shape is not told.
// Nothing is allocated for more than `max_values` of them. INVALID_ARGUMENT for the field `where`:
// INIT_IMAGE_TOO_LARGE, INIT_IMAGE_UNREADABLE for what is no PNG, no whole number of values or not finite.
absl::StatusOr<InitImage> DecodeInitImage(std::string_view bytes, ImageFormat format, int64_t max_values,
                                          std::string_view where);

}  // namespace atl::router
