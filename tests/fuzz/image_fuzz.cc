// PNG, JPEG and WebP.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/dataset/image_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atl::dataset;
  const auto image = DecodeImage({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!image.ok()) return 0;
  const int64_t pixels = int64_t{image->height} * image->width;
  if (pixels < 1 || pixels > kMaxPixels || static_cast<size_t>(pixels * image->channels) != image->pixels.size()) {
    std::abort();
  }
  constexpr int64_t kQuick = 1 << 16;
  if (pixels > kQuick) return 0;
  const Image scaled = CropAndResize(ToChannels(*image, 4 - image->channels), 9);
  // A decoded image must survive our own format.
  const auto again = DecodeImage(EncodePng(scaled).value(), "fuzz");
  if (!again.ok() || again->pixels != scaled.pixels) std::abort();
  return 0;
}
