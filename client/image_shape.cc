#include "client/image_shape.h"

#include <array>
#include <charconv>

#include "client/dataset_store.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

constexpr int32_t kMostChannels = 65536;

absl::StatusOr<spec::SampleShape> ParseShape(const std::string& text) {
  std::array<int32_t, 3> numbers{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto [stop, error] = std::from_chars(at, end, numbers[i]);
    const bool last = i + 1 == numbers.size();
    if (error != std::errc() || numbers[i] < 1 || (last ? stop != end : stop == end || *stop != 'x')) {
      return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                       fmt::format("--image: expected CHANNELSxHEIGHTxWIDTH such as 1x8x8, found '{}'", text));
    }
    at = stop + 1;
  }
  if (numbers[0] > kMostChannels || int64_t{numbers[1]} * numbers[2] > dataset::kMaxPixels) {
    return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                     fmt::format("--image: expected at most {} channels and {} pixels, as datasets have, found '{}'",
                                 kMostChannels, dataset::kMaxPixels, text));
  }
  return spec::SampleShape(numbers.begin(), numbers.end());
}

}  // namespace

absl::StatusOr<spec::SampleShape> FindImageShape(const Session& session, const std::string& flag,
                                                 const std::string& dataset_name) {
  if (!flag.empty()) return ParseShape(flag);
  const auto store = OpenBlobStore(session);
  if (!store.ok()) return WithContext(store.status(), "without --image CxHxW the dataset must tell the size of images");
  ATOLL_ASSIGN_OR_RETURN(const auto manifest, ReadDataset(store->get(), dataset_name));
  return spec::SampleShape{manifest.channels, manifest.height, manifest.width};
}

}  // namespace atl::client
