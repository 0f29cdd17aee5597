// What a caller asks of the sampler, and the same with every default filled in and every bound checked. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/policy/expert_choice.h"
#include "router/policy/time_grid.h"

namespace atl::router {

enum class ImageFormat { kPng, kRaw };

// A class label of -1 asks for an image of no class: the null class of experts and router network.
inline constexpr int32_t kNoClass = -1;
inline constexpr int32_t kDefaultSteps = 30;
inline constexpr double kDefaultGuidance = 2.0;
// v_null + g (v_class - v_null) multiplies rounding errors by g; above this images are noise.
inline constexpr double kMaxGuidance = 100.0;

// The model version that a request is checked against.
struct SamplerInfo {
  std::string model;
  std::string version;
  int32_t experts = 0;
  int32_t classes = 0;  // 0: an unconditional model
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  bool latent = false;             // samples are latents, not pixels
  bool self_conditioning = false;  // experts read the ensemble's estimate of the step before

  int64_t pixels() const { return int64_t{channels} * height * width; }
  bool operator==(const SamplerInfo&) const = default;
};

struct SamplerLimits {
  int32_t max_steps = 250;
  int32_t max_images = 1024;  // in one request
};

// As asked. Zero or empty means the default, as in proto/atoll/sample/v1/sample_service.proto.
struct SampleRequest {
  std::string model;
  std::string version;
  std::vector<int32_t> classes;
  std::vector<uint64_t> seeds;
  RoutingRule routing;
  Solver solver = Solver::kEuler;
  int32_t steps = 0;
  std::optional<double> guidance;
  ImageFormat format = ImageFormat::kPng;
};

struct ImageOrder {
  int32_t class_label = kNoClass;
  uint64_t seed = 0;
  bool operator==(const ImageOrder&) const = default;
};

// A request that can be run as it stands.
struct SampleOrder {
  std::vector<ImageOrder> images;
  RoutingRule routing;
  Solver solver = Solver::kEuler;
  int32_t steps = kDefaultSteps;
  double guidance = kDefaultGuidance;
  ImageFormat format = ImageFormat::kPng;

  // Whether an image needs the null branch beside its class branch. Guidance 1 is the class branch alone.
  bool guided(const ImageOrder& image) const { return image.class_label != kNoClass && guidance != 1.0; }
};

// The part of ResolveRequest that looks at sizes alone, for callers that would otherwise copy a hostile request.
absl::Status CheckCounts(size_t images, size_t seeds, const SamplerLimits& limits);

// INVALID_ARGUMENT names the field, the accepted range and what was found: no image or too many, an unknown class, a
// number of seeds that fits nothing, pictures of latents, steps, guidance, top_k, threshold or oracle expert out of
// range.
absl::StatusOr<SampleOrder> ResolveRequest(const SampleRequest& request, const SamplerInfo& info,
                                           const SamplerLimits& limits);

}  // namespace atl::router
