// Encodes and decodes PNG, JPEG and WebP images. Input is untrusted: the decoders read sizes from the header and check
// them before they allocate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"

namespace atl::dataset {

// Limits of one image: its decoded pixels, and the bytes of its file.
inline constexpr int64_t kMaxPixels = int64_t{64} << 20;
inline constexpr int64_t kMaxImageBytes = int64_t{256} << 20;

// Decodes to 1 channel for grey, 3 for colour. 16 bits become 8, palettes become colours, and alpha is removed (PNG:
// blended over white; WebP: dropped). INVALID_ARGUMENT naming `where`: IMAGE_TOO_LARGE beyond the limits above,
// IMAGE_UNREADABLE for anything but a complete PNG, JPEG (grey or YCbCr) or still WebP.
absl::StatusOr<Image> DecodeImage(std::string_view bytes, std::string_view where);

// Encodes 1, 3 or 4 channels. Equal pixels give equal bytes.
absl::StatusOr<std::string> EncodePng(const Image& image);

// Converts grey to colour, or colour to grey by luma (BT.601). Equal channels are returned unchanged.
Image ToChannels(Image image, int32_t channels);

// Returns the largest centred square, scaled to size x size: area average downwards, bilinear upwards.
Image CropAndResize(const Image& image, int32_t size);

// Appends the pixels scaled to [-1, 1], [height][width][channels].
void AppendScaled(const Image& image, std::vector<float>* out);

}  // namespace atl::dataset
