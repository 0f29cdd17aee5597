// Images as rows of floats, for features over pixels. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "common/dataset/dataset.h"

namespace atl::tasks {

// Larger images are averaged down to this many cells per side, because the covariance of pixels grows with the fourth
// power of the side and clusters need no detail.
inline constexpr int32_t kMaxPixelSide = 32;

// Returns the values per image: channels x min(height, kMaxPixelSide) x min(width, kMaxPixelSide).
int64_t PixelValues(int32_t channels, int32_t height, int32_t width);

// Fills `out` with [channels][height][width] scaled to [-1, 1], averaged down as above.
void ReadPixels(const dataset::Image& image, std::span<float> out);

// Like ReadPixels, at full size.
void ReadPlanes(const dataset::Image& image, std::span<float> out);

}  // namespace atl::tasks
