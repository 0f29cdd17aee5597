#include "client/job_checks.h"

#include <array>
#include <charconv>
#include <cstdint>

#include "client/dataset_store.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

// Samples enough for any number of experts and centroids.
constexpr int64_t kEnoughSamples = int64_t{1} << 40;

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

// Refuses what a submit refuses of a job for images of this shape. Samples and classes, which a dataset would tell
// too, are taken to suit the job.
absl::Status CheckImages(const spec::JobSpec& spec, const spec::SampleShape& image) {
  spec::JobSpec checked = spec;
  checked.features = {.kind = "column", .column = "any"};  // nothing of it is planned or measured
  const spec::DatasetFacts facts{.training_samples = kEnoughSamples,
                                 .classes = 1,
                                 .channels = image[0],
                                 .height = image[1],
                                 .width = image[2],
                                 .columns = {"any"}};
  return spec::Validate(checked, &facts);
}

absl::Status Mismatch(const std::string& file, const std::string& expected, const std::string& network,
                      const std::string& found) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, "PROFILE_MISMATCH",
      fmt::format("{}: expected a profile of {}, as the job's {} has, found {}", file, expected, network, found));
}

}  // namespace

absl::StatusOr<spec::SampleShape> FindImages(const Session& session, const std::string& flag, const spec::JobSpec& spec,
                                             const std::string& file) {
  spec::SampleShape image;
  if (!flag.empty()) {
    ATOLL_ASSIGN_OR_RETURN(image, ParseShape(flag));
  } else {
    const auto store = OpenBlobStore(session);
    if (!store.ok()) {
      return WithContext(store.status(), "without --image CxHxW the dataset must tell the size of images");
    }
    ATOLL_ASSIGN_OR_RETURN(const auto manifest, ReadDataset(store->get(), spec.dataset));
    image = {manifest.channels, manifest.height, manifest.width};
  }
  ATOLL_RETURN_IF_ERROR(WithContext(CheckImages(spec, image), file));
  return image;
}

absl::Status CheckProfileIsOf(const planner::Profile& profile, const spec::ModelSpec& model, const std::string& network,
                              const std::string& file) {
  const int32_t layers = spec::LayerCount(model);
  if (profile.layer_count() != layers) {
    return Mismatch(file, fmt::format("{} layers", layers), network, fmt::format("{}", profile.layer_count()));
  }
  const planner::Profile counted = planner::CountedProfile(model, /*tokens=*/1, /*channels=*/1);
  // Weights are counted, and biases are not: of what a block makes and reads, which is below 16 + mlp_ratio widths.
  const double biases = 4 * model.width * (16 + model.mlp_ratio);
  for (int32_t layer = 1; layer + 1 < layers; ++layer) {
    const double expected = counted.parameter_bytes[static_cast<size_t>(layer)];
    const double found = profile.parameter_bytes[static_cast<size_t>(layer)];
    // A hidden width that is not whole is rounded.
    const double rounding = 8 * (model.width + 1);
    if (found >= expected - rounding && found <= expected + biases + rounding) continue;
    return Mismatch(file, fmt::format("blocks of {:.0f} bytes of weights", expected), network,
                    fmt::format("{:.0f} bytes in layer {}", found, layer));
  }
  return absl::OkStatus();
}

}  // namespace atl::client
