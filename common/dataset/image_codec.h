// Images as bytes of PNG, JPEG or WebP. The decoders face files of strangers: sizes are read from the header and
// checked before anything is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"

namespace atl::dataset {

// What one image may hold when decoded, and what its file may.
inline constexpr int64_t kMaxPixels = int64_t{64} << 20;
inline constexpr int64_t kMaxImageBytes = int64_t{256} << 20;

// 1 channel for grey, 3 for colour; 16 bits become 8, palettes colours, and alpha goes (PNG: laid over white; WebP:
// dropped).
// INVALID_ARGUMENT naming `where`: IMAGE_TOO_LARGE beyond the limits above, IMAGE_UNREADABLE for anything that is no
// whole PNG, JPEG (grey or YCbCr) or still WebP.
absl::StatusOr<Image> DecodeImage(std::string_view bytes, std::string_view where);

// 1, 3 or 4 channels. Equal pixels give equal bytes.
absl::StatusOr<std::string> EncodePng(const Image& image);

// Grey to colour, or colour to grey by luma (BT.601); equal channels are returned as they are.
Image ToChannels(Image image, int32_t channels);

// The largest centred square, scaled to size x size: area average downwards, bilinear upwards.
Image CropAndResize(const Image& image, int32_t size);

// Appends the pixels scaled to [-1, 1], [height][width][channels].
void AppendScaled(const Image& image, std::vector<float>* out);

}  // namespace atl::dataset
