#include "common/dataset/image_codec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_formats.h"
#include "fmt/format.h"

namespace atl::dataset {

absl::Status UnreadableImage(std::string_view where, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "IMAGE_UNREADABLE", fmt::format("{}: {}", where, message));
}

absl::Status CheckImageSize(int64_t channels, int64_t height, int64_t width, std::string_view where) {
  if (channels < 1 || height < 1 || width < 1 || height > INT32_MAX || width > INT32_MAX) {
    return UnreadableImage(where, fmt::format("expected a size of at least 1 x 1, found {} x {}", height, width));
  }
  const int64_t pixels = height * width;
  if (pixels > kMaxPixels || pixels * channels > kMaxImageBytes) {
    return MakeError(absl::StatusCode::kInvalidArgument, "IMAGE_TOO_LARGE",
                     fmt::format("{}: expected at most {} pixels, found {} x {}", where, kMaxPixels, height, width));
  }
  return absl::OkStatus();
}

absl::StatusOr<Image> DecodeImage(std::string_view bytes, std::string_view where) {
  if (static_cast<int64_t>(bytes.size()) > kMaxImageBytes) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "IMAGE_TOO_LARGE",
        fmt::format("{}: expected a file of at most {} bytes, found {}", where, kMaxImageBytes, bytes.size()));
  }
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return DecodePng(bytes, where);
  if (bytes.starts_with("\xff\xd8\xff")) return DecodeJpeg(bytes, where);
  if (bytes.size() >= 12 && bytes.starts_with("RIFF") && bytes.substr(8, 4) == "WEBP") return DecodeWebp(bytes, where);
  if (bytes.empty()) return UnreadableImage(where, "expected PNG, JPEG or WebP, found no bytes");
  std::string start;
  for (const char c : bytes.substr(0, 8)) start += fmt::format(" {:02x}", static_cast<uint8_t>(c));
  return UnreadableImage(where, fmt::format("expected PNG, JPEG or WebP, found bytes{}", start));
}

Image ToChannels(Image image, int32_t channels) {
  if (image.channels == channels || (channels != 1 && channels != 3)) return image;
  const size_t pixels = static_cast<size_t>(image.height) * image.width;
  Image result{.channels = channels, .height = image.height, .width = image.width};
  result.pixels.resize(pixels * channels);
  for (size_t i = 0; i < pixels; ++i) {
    if (channels == 3) {
      std::fill_n(&result.pixels[3 * i], 3, image.pixels[i]);
    } else {
      const uint8_t* rgb = &image.pixels[static_cast<size_t>(image.channels) * i];
      result.pixels[i] = static_cast<uint8_t>((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
    }
  }
  return result;
}

namespace {

// The weight of each source position in one result position.
struct Taps {
  int32_t first = 0;
  std::vector<float> weights;
};

// Area average when shrinking, linear interpolation when enlarging; positions start at `offset` in the source.
std::vector<Taps> ScaleTaps(int32_t from, int32_t to, int32_t offset) {
  std::vector<Taps> all(to);
  const double scale = static_cast<double>(from) / to;
  for (int32_t i = 0; i < to; ++i) {
    Taps& taps = all[i];
    if (scale >= 1) {
      const double begin = i * scale;
      const double end = std::min<double>(from, (i + 1) * scale);
      const auto first = static_cast<int32_t>(begin);
      taps.first = offset + first;
      for (int32_t j = first; j < end && j < from; ++j) {
        taps.weights.push_back(static_cast<float>((std::min<double>(end, j + 1) - std::max<double>(begin, j)) / scale));
      }
    } else {
      const double centre = std::clamp((i + 0.5) * scale - 0.5, 0.0, from - 1.0);
      const auto first = std::min(static_cast<int32_t>(centre), std::max(from - 2, 0));
      const auto fraction = static_cast<float>(centre - first);
      taps.first = offset + first;
      taps.weights = {1 - fraction};
      if (from > 1) taps.weights.push_back(fraction);
    }
  }
  return all;
}

}  // namespace

Image CropAndResize(const Image& image, int32_t size) {
  const int32_t side = std::min(image.height, image.width);
  const int32_t channels = image.channels;
  const std::vector<Taps> rows = ScaleTaps(side, size, (image.height - side) / 2);
  const std::vector<Taps> columns = ScaleTaps(side, size, (image.width - side) / 2);
  Image result{.channels = channels, .height = size, .width = size};
  result.pixels.resize(static_cast<size_t>(channels) * size * size);
  // Rows first: one line of the source's width at a time.
  std::vector<float> line(static_cast<size_t>(image.width) * channels);
  for (int32_t y = 0; y < size; ++y) {
    std::fill(line.begin(), line.end(), 0.0F);
    for (size_t tap = 0; tap < rows[y].weights.size(); ++tap) {
      const uint8_t* source = &image.pixels[(rows[y].first + tap) * line.size()];
      for (size_t x = 0; x < line.size(); ++x) line[x] += rows[y].weights[tap] * source[x];
    }
    for (int32_t x = 0; x < size; ++x) {
      for (int32_t c = 0; c < channels; ++c) {
        float sum = 0;
        for (size_t tap = 0; tap < columns[x].weights.size(); ++tap) {
          sum += columns[x].weights[tap] * line[(columns[x].first + tap) * channels + c];
        }
        result.pixels[(static_cast<size_t>(y) * size + x) * channels + c] =
            static_cast<uint8_t>(std::clamp(std::lround(sum), 0L, 255L));
      }
    }
  }
  return result;
}

void AppendScaled(const Image& image, std::vector<float>* out) {
  out->reserve(out->size() + image.pixels.size());
  for (const uint8_t pixel : image.pixels) out->push_back(static_cast<float>(pixel) / 127.5F - 1.0F);
}

}  // namespace atl::dataset
