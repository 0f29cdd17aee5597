#include "worker/tasks/pixels.h"

#include <algorithm>
#include <cstddef>

namespace atl::tasks {
namespace {

float Scale(double byte) {
  return static_cast<float>(byte / 127.5 - 1);
}

// Averages of the cells of a grid; with as many cells as pixels, the pixels.
void ReadCells(const dataset::Image& image, int32_t cell_rows, int32_t cell_columns, std::span<float> out) {
  size_t next = 0;
  for (int32_t channel = 0; channel < image.channels; ++channel) {
    for (int32_t row = 0; row < cell_rows; ++row) {
      const int32_t top = row * image.height / cell_rows;
      const int32_t bottom = (row + 1) * image.height / cell_rows;
      for (int32_t column = 0; column < cell_columns; ++column) {
        const int32_t left = column * image.width / cell_columns;
        const int32_t right = (column + 1) * image.width / cell_columns;
        int64_t sum = 0;
        for (int32_t y = top; y < bottom; ++y) {
          for (int32_t x = left; x < right; ++x) {
            sum += image.pixels[(static_cast<size_t>(y) * image.width + x) * image.channels + channel];
          }
        }
        out[next++] = Scale(static_cast<double>(sum) / ((bottom - top) * (right - left)));
      }
    }
  }
}

}  // namespace

int64_t PixelValues(int32_t channels, int32_t height, int32_t width) {
  return int64_t{channels} * std::min(height, kMaxPixelSide) * std::min(width, kMaxPixelSide);
}

void ReadPixels(const dataset::Image& image, std::span<float> out) {
  ReadCells(image, std::min(image.height, kMaxPixelSide), std::min(image.width, kMaxPixelSide), out);
}

void ReadPlanes(const dataset::Image& image, std::span<float> out) {
  ReadCells(image, image.height, image.width, out);
}

}  // namespace atl::tasks
