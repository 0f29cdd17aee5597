#include <png.h>

#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/image_formats.h"
#include "fmt/format.h"

namespace atl::dataset {

// libpng's simplified interface: errors are returned, not thrown by longjmp over our objects.
absl::StatusOr<Image> DecodePng(std::string_view bytes, std::string_view where) {
  png_image png;
  std::memset(&png, 0, sizeof(png));
  png.version = PNG_IMAGE_VERSION;
  const absl::Cleanup free_png = [&png] { png_image_free(&png); };
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) {
    return UnreadableImage(where, fmt::format("PNG: {}", png.message));
  }
  const bool colour = (png.format & PNG_FORMAT_FLAG_COLOR) != 0;
  Image image{
      .channels = colour ? 3 : 1, .height = static_cast<int32_t>(png.height), .width = static_cast<int32_t>(png.width)};
  ATOLL_RETURN_IF_ERROR(CheckImageSize(image.channels, png.height, png.width, where));
  png.format = colour ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  // 16-bit samples are what cameras and scanners write: encoded like 8-bit ones, not linear light.
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  png_color white = {255, 255, 255};
  if (png_image_finish_read(&png, &white, image.pixels.data(), 0, nullptr) == 0) {
    return UnreadableImage(where, fmt::format("PNG: {}", png.message));
  }
  return image;
}

absl::StatusOr<std::string> EncodePng(const Image& image) {
  const bool known = image.channels == 1 || image.channels == 3 || image.channels == 4;
  const int64_t size = int64_t{image.channels} * image.height * image.width;
  if (!known || image.height < 1 || image.width < 1 || size != static_cast<int64_t>(image.pixels.size())) {
    return MakeError(absl::StatusCode::kInvalidArgument, "IMAGE_MALFORMED",
                     fmt::format("image of {} channels, {} x {}: expected 1, 3 or 4 channels and {} bytes, found {}",
                                 image.channels, image.height, image.width, size, image.pixels.size()));
  }
  png_image png;
  std::memset(&png, 0, sizeof(png));
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : image.channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
  const absl::Cleanup free_png = [&png] { png_image_free(&png); };
  png_alloc_size_t encoded = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string bytes(encoded, '\0');
  if (png_image_write_to_memory(&png, bytes.data(), &encoded, 0, image.pixels.data(), 0, nullptr) == 0) {
    return MakeError(absl::StatusCode::kInternal, "IMAGE_NOT_ENCODED", fmt::format("PNG: {}", png.message));
  }
  bytes.resize(encoded);
  return bytes;
}

}  // namespace atl::dataset
