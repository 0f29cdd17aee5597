#include "router/engine/init_image.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

// A PNG starts with its signature, a length, "IHDR", width and height.
constexpr std::string_view kPngSignature("\x89PNG\r\n\x1a\n", 8);
constexpr size_t kWidthOffset = 16;
constexpr size_t kHeaderBytes = 24;
constexpr int64_t kMaxChannels = 3;

int64_t BigEndian32(std::string_view bytes) {
  int64_t value = 0;
  for (const char byte : bytes.substr(0, 4)) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

absl::Status TooLarge(std::string_view where, int64_t max_values) {
  return FieldError(where, "INIT_IMAGE_TOO_LARGE",
                    fmt::format("expected at most {} values in all images to start from, found more", max_values));
}

absl::Status Unreadable(std::string_view where, std::string_view why) {
  return FieldError(where, "INIT_IMAGE_UNREADABLE", why);
}

absl::StatusOr<InitImage> DecodePng(std::string_view bytes, int64_t max_values, std::string_view where) {
  if (bytes.size() < kHeaderBytes || !bytes.starts_with(kPngSignature)) {
    return Unreadable(where, fmt::format("expected a PNG, found {} bytes that do not start as one", bytes.size()));
  }
  // Both are below 2^32, so that the product fits.
  const int64_t width = BigEndian32(bytes.substr(kWidthOffset));
  const int64_t height = BigEndian32(bytes.substr(kWidthOffset + 4));
  if (width > max_values || height > max_values / kMaxChannels / std::max<int64_t>(1, width)) {
    return TooLarge(where, max_values);
  }
  const absl::StatusOr<dataset::Image> image = dataset::DecodeImage(bytes, where);
  if (!image.ok()) return Unreadable(where, std::string(image.status().message()));
  std::vector<float> interleaved;
  dataset::AppendScaled(*image, &interleaved);
  const int64_t area = int64_t{image->height} * image->width;
  std::vector<float> pixels(interleaved.size());
  for (int64_t pixel = 0; pixel < area; ++pixel) {
    for (int64_t channel = 0; channel < image->channels; ++channel) {
      pixels[channel * area + pixel] = interleaved[pixel * image->channels + channel];
    }
  }
  return InitImage{.pixels = std::make_shared<const std::vector<float>>(std::move(pixels)),
                   .channels = image->channels,
                   .height = image->height,
                   .width = image->width};
}

absl::StatusOr<InitImage> DecodeRaw(std::string_view bytes, int64_t max_values, std::string_view where) {
  if (bytes.size() % sizeof(float) != 0) {
    return Unreadable(where, fmt::format("expected float32 values, found {} bytes", bytes.size()));
  }
  const size_t values = bytes.size() / sizeof(float);
  if (values > static_cast<size_t>(max_values)) return TooLarge(where, max_values);
  std::vector<float> pixels(values);
  if (values > 0) std::memcpy(pixels.data(), bytes.data(), bytes.size());
  if (!std::all_of(pixels.begin(), pixels.end(), [](float value) { return std::isfinite(value); })) {
    return Unreadable(where, "expected finite values, found some that are not");
  }
  return InitImage{.pixels = std::make_shared<const std::vector<float>>(std::move(pixels))};
}

}  // namespace

absl::StatusOr<InitImage> DecodeInitImage(std::string_view bytes, ImageFormat format, int64_t max_values,
                                          std::string_view where) {
  return format == ImageFormat::kPng ? DecodePng(bytes, max_values, where) : DecodeRaw(bytes, max_values, where);
}

}  // namespace atl::router
