// Samples on disk: a folder with samples.json and either one PNG per image or samples.safetensors (docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "atoll/sample/v1/sample_service.pb.h"
#include "nlohmann/json.hpp"

namespace atl::client {

struct DrawnImage {
  int32_t label = -1;
  uint64_t seed = 0;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  std::string bytes;  // PNG; or float32 [channels][height][width] in [-1, 1], little endian, when the set is raw
};

// Statistics of the experts that sampled, summed over requests.
struct Routing {
  std::vector<int64_t> chosen;
  std::vector<double> weight;
  int64_t image_steps = 0;
  double mean_entropy = 0;  // nats
  // Image-steps with other experts than the step before, image-steps in which rounding might have changed the choice,
  // and image-steps that continued without an expert. Then the lost experts, ascending, and the number of evaluations
  // that another replica took over.
  int64_t switches = 0;
  int64_t close_calls = 0;
  int64_t renormalised_image_steps = 0;
  std::vector<int32_t> lost_experts;
  int64_t failovers = 0;
};

struct SampleSet {
  std::string model;
  std::string version;
  std::string mode;
  bool raw = false;
  atlpb::sample::v1::SampleRequest settings;  // as requested; an unset field means the version's default
  std::vector<std::string> init;              // files or a folder that sampling started from
  std::vector<DrawnImage> images;
  Routing routing;
  double sample_seconds = 0;
  double queue_seconds = 0;
  double first_image_seconds = 0;  // of the first request, from its arrival; 0: not reported
  std::string fingerprint;         // of the arithmetic that drew reproducible images
};

// Adds `more` as if both had been one request.
void Merge(const Routing& more, Routing* routing);

// Returns the set without images and routing; "settings" uses the names of requests and omits settings that are off.
nlohmann::ordered_json SummaryJson(const SampleSet& set);
nlohmann::ordered_json RoutingJson(const Routing& routing);

// Checks that a set may be written to `folder`. FAILED_PRECONDITION (FOLDER_NOT_EMPTY) if it is non-empty without a
// set.
absl::Status CheckSampleFolder(const std::string& folder);

// Replaces an existing set and leaves other files in the folder alone; errors of CheckSampleFolder. After any other
// error the folder has no set.
absl::Status WriteSampleSet(const std::string& folder, const SampleSet& set);

// NOT_FOUND, or DATA_LOSS (SAMPLES_MALFORMED), naming the file.
absl::StatusOr<SampleSet> ReadSampleSet(const std::string& folder);

// Returns every image in [-1, 1], [height][width][channels], concatenated; INVALID_ARGUMENT when shapes differ.
absl::StatusOr<std::vector<float>> ScaledPixels(const SampleSet& set);

}  // namespace atl::client
