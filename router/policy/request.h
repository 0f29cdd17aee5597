// The caller's request to the sampler, and the resolved order with every default filled in and every bound checked.
// Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/expert_choice.h"
#include "router/policy/time_grid.h"

namespace atl::router {

enum class ImageFormat { kPng, kRaw };

// A class label of -1 requests an image of no class: the null class of experts and router network.
inline constexpr int32_t kNoClass = -1;
inline constexpr int32_t kDefaultSteps = 30;
inline constexpr double kDefaultGuidance = 2.0;
// v_null + g (v_class - v_null) multiplies rounding errors by g; above this images are noise.
inline constexpr double kMaxGuidance = 100.0;
// How far into noise an init image is taken by default.
inline constexpr double kDefaultStrength = 0.5;
// A shorter step has no length left in float32; custom times and strengths must respect it.
inline constexpr double kMinStepLength = 1e-5;
// Posteriors are raised to 1 / temperature.
inline constexpr double kMinTemperature = 0.01;
inline constexpr double kMaxTemperature = 100.0;
inline constexpr int32_t kDefaultPriority = 5;
inline constexpr int32_t kMaxPriority = 9;

// The defaults for fields that a request leaves open: the version's own, else these.
struct SamplingDefaults {
  RoutingRule routing;
  Solver solver = Solver::kEuler;
  int32_t steps = kDefaultSteps;
  double guidance = kDefaultGuidance;
  bool operator==(const SamplingDefaults&) const = default;
};

// The model version that a request is checked against.
struct SamplerInfo {
  std::string model;
  std::string version;
  int32_t experts = 0;
  int32_t classes = 0;  // 0: an unconditional model
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  bool latent = false;                        // samples are latents, not pixels
  bool self_conditioning = false;             // experts read the ensemble's estimate of the step before
  std::vector<std::string> class_names = {};  // by class; empty where classes have none
  SamplingDefaults defaults = {};

  int64_t pixels() const { return int64_t{channels} * height * width; }
  bool operator==(const SamplerInfo&) const = default;
};

struct SamplerLimits {
  int32_t max_steps = 250;
  int32_t max_images = 1024;  // in one request
};

// An image to start from.
struct InitImage {
  std::shared_ptr<const std::vector<float>> pixels;  // [channels][height][width], pictures in [-1, 1]; finite
  // All 0 if the bytes are raw values, which do not contain their shape.
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
};

// The request as received. Zero or empty means the default, as in proto/atoll/sample/v1/sample_service.proto.
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
  std::vector<double> times;
  double guidance_from = 0;
  double guidance_to = 1;
  int32_t negative_class = kNoClass;
  std::vector<InitImage> init_images;  // none, one for all images, or one per image
  std::optional<double> strength;
  int32_t priority = kDefaultPriority;  // 0 to kMaxPriority, higher goes first
  int32_t preview_every = 0;            // steps; 0: no previews
  bool reproducible = false;
  // Use the version's own rule and solver instead of those above.
  bool default_routing = false;
  bool default_solver = false;
  bool allow_expert_loss = false;
};

struct ImageOrder {
  int32_t class_label = kNoClass;
  uint64_t seed = 0;
  std::shared_ptr<const std::vector<float>> init = nullptr;  // [channels][height][width], or null: start from noise
  bool operator==(const ImageOrder&) const = default;
};

// A resolved request, ready to run.
struct SampleOrder {
  std::vector<ImageOrder> images;
  RoutingRule routing;
  Solver solver = Solver::kEuler;
  int32_t steps = kDefaultSteps;
  double guidance = kDefaultGuidance;
  ImageFormat format = ImageFormat::kPng;
  int32_t priority = kDefaultPriority;
  int32_t preview_every = 0;
  bool reproducible = false;  // the same bits whatever else runs, on lanes of one arithmetic

  // Custom times for the solver; empty: `steps` equal steps from `start`.
  std::vector<double> times;
  // The time at which sampling begins: 1 is pure noise, less is an init image with that much noise.
  double start = 1;
  // Guidance acts at times in [guidance_from, guidance_to].
  double guidance_from = 0;
  double guidance_to = 1;
  int32_t negative_class = kNoClass;  // of the other guidance branch
  // Whether a step continues without a chosen expert that no replica evaluates, with the weights of the others
  // renormalised; otherwise the request fails.
  bool allow_expert_loss = false;

  // Whether an image needs the second branch beside its own at time t. Guidance 1 needs only its own branch, and so
  // does guidance away from its own class.
  bool guided(const ImageOrder& image, double t) const {
    return guidance != 1.0 && image.class_label != negative_class && t >= guidance_from && t <= guidance_to;
  }
  std::vector<SolverStep> Grid() const;
};

// Checks only sizes, for callers that would otherwise copy a hostile request.
absl::Status CheckCounts(size_t images, size_t seeds, const SamplerLimits& limits);
absl::Status CheckInitCount(size_t init_images, size_t images);
absl::Status CheckTimesCount(size_t times, const SamplerLimits& limits);

// Resolves a request. INVALID_ARGUMENT names the field, the accepted range and the found value: no image or too many,
// an unknown class, a number of seeds or init images that does not match, pictures for a latent model, an init image of
// another shape, times that do not fall, and steps, guidance, its interval, strength, top_k, threshold, nucleus,
// temperature, oracle expert, priority or preview_every out of range.
absl::StatusOr<SampleOrder> ResolveRequest(const SampleRequest& request, const SamplerInfo& info,
                                           const SamplerLimits& limits);

}  // namespace atl::router
