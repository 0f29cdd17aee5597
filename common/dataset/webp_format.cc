#include <webp/decode.h>

#include "common/base/status_macros.h"
#include "common/dataset/image_formats.h"
#include "fmt/format.h"

namespace atl::dataset {

absl::StatusOr<Image> DecodeWebp(std::string_view bytes, std::string_view where) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPBitstreamFeatures features;
  const VP8StatusCode status = WebPGetFeatures(data, bytes.size(), &features);
  if (status != VP8_STATUS_OK) return UnreadableImage(where, fmt::format("WebP: status {}", static_cast<int>(status)));
  if (features.has_animation != 0) return UnreadableImage(where, "WebP: expected a still image, found an animation");
  Image image{.channels = 3, .height = features.height, .width = features.width};
  ATOLL_RETURN_IF_ERROR(CheckImageSize(3, features.height, features.width, where));
  image.pixels.resize(size_t{3} * features.height * features.width);
  if (WebPDecodeRGBInto(data, bytes.size(), image.pixels.data(), image.pixels.size(), 3 * features.width) == nullptr) {
    return UnreadableImage(where, "WebP: cut short or damaged");
  }
  return image;
}

}  // namespace atl::dataset
