#include "client/job_checks.h"

#include <algorithm>
#include <cstdint>

#include "common/base/errors.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

// Samples enough for any number of experts and centroids.
constexpr int64_t kEnoughSamples = int64_t{1} << 40;

absl::Status Mismatch(const std::string& file, const std::string& expected, const std::string& network,
                      const std::string& found) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, "PROFILE_MISMATCH",
      fmt::format("{}: expected a profile of {}, as the job's {} has, found {}", file, expected, network, found));
}

}  // namespace

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
