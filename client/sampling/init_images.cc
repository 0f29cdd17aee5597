#include "client/sampling/init_images.h"

#include <filesystem>

#include "client/sampling/sample_set.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

std::string RawPlanes(const dataset::Image& image) {
  std::vector<float> interleaved;
  dataset::AppendScaled(image, &interleaved);
  const size_t channels = static_cast<size_t>(image.channels);
  const size_t plane = interleaved.size() / channels;
  std::vector<float> planes(interleaved.size());
  for (size_t c = 0; c < channels; ++c) {
    for (size_t p = 0; p < plane; ++p) planes[c * plane + p] = interleaved[p * channels + c];
  }
  return {reinterpret_cast<const char*>(planes.data()), planes.size() * sizeof(float)};
}

absl::StatusOr<std::string> Encode(const std::string& bytes, const ImageShape& shape, bool raw,
                                   const std::string& where) {
  ATOLL_ASSIGN_OR_RETURN(dataset::Image decoded, dataset::DecodeImage(bytes, where));
  ATOLL_ASSIGN_OR_RETURN(const dataset::Image image, FitImage(std::move(decoded), shape, where));
  if (raw) return RawPlanes(image);
  return dataset::EncodePng(image);
}

absl::StatusOr<std::vector<std::string>> ReadFolder(const std::string& folder, const ImageShape& shape, bool raw) {
  ATOLL_ASSIGN_OR_RETURN(const SampleSet set, ReadSampleSet(folder));
  if (set.raw && !raw) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INIT_SHAPE",
                     fmt::format("--init: expected pictures, or --raw beside raw samples, found {}", folder));
  }
  std::vector<std::string> images;
  for (const DrawnImage& image : set.images) {
    if (set.raw) {
      images.push_back(image.bytes);
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(std::string encoded, Encode(image.bytes, shape, raw, folder));
    images.push_back(std::move(encoded));
  }
  return images;
}

}  // namespace

absl::StatusOr<dataset::Image> FitImage(dataset::Image image, const ImageShape& shape, const std::string& where) {
  if (shape.channels == 1 || shape.channels == 3) image = dataset::ToChannels(std::move(image), shape.channels);
  const auto fits = [&] {
    return image.channels == shape.channels && image.height == shape.height && image.width == shape.width;
  };
  if (!fits() && shape.height == shape.width) image = dataset::CropAndResize(image, shape.width);
  if (fits()) return image;
  return MakeError(absl::StatusCode::kInvalidArgument, "INIT_SHAPE",
                   fmt::format("{}: expected {}x{}x{} (channels, height, width), found {}x{}x{}", where, shape.channels,
                               shape.height, shape.width, image.channels, image.height, image.width));
}

absl::StatusOr<std::vector<std::string>> ReadInitImages(const std::vector<std::string>& paths, const ImageShape& shape,
                                                        bool raw) {
  std::error_code error;
  if (paths.size() == 1 && std::filesystem::is_directory(paths[0], error)) return ReadFolder(paths[0], shape, raw);
  std::vector<std::string> images;
  for (const std::string& path : paths) {
    ATOLL_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, dataset::kMaxImageBytes));
    ATOLL_ASSIGN_OR_RETURN(std::string encoded, Encode(bytes, shape, raw, path));
    images.push_back(std::move(encoded));
  }
  return images;
}

}  // namespace atl::client
