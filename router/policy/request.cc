#include "router/policy/request.h"

#include <limits>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

absl::Status OutOfRange(std::string_view field, std::string_view message) {
  return FieldError(field, "VALUE_OUT_OF_RANGE", message);
}

// `note` follows the range in the message. NaN is in no range.
absl::Status CheckRange(std::string_view field, double value, double least, double most, std::string_view note = "") {
  if (value >= least && value <= most) return absl::OkStatus();
  return OutOfRange(field, fmt::format("expected {} to {}{}, found {}", least, most, note, value));
}

absl::Status CheckProbability(std::string_view field, double value) {
  if (value > 0.0 && value <= 1.0) return absl::OkStatus();
  return OutOfRange(field, fmt::format("expected a probability above 0 and at most 1, found {}", value));
}

absl::Status CheckClass(std::string_view field, int32_t label, const SamplerInfo& info) {
  if (label >= kNoClass && label < info.classes) return absl::OkStatus();
  const std::string known = info.classes == 0 ? fmt::format("{} (the model has no classes)", kNoClass)
                                              : fmt::format("0 to {}, or {} for none", info.classes - 1, kNoClass);
  return FieldError(field, "UNKNOWN_CLASS",
                    fmt::format("expected a class of model '{}', {}, found {}", info.model, known, label));
}

absl::Status CheckClasses(const SampleRequest& request, const SamplerInfo& info) {
  for (size_t i = 0; i < request.classes.size(); ++i) {
    // The name of the field is made for errors alone: there may be many classes.
    if (request.classes[i] >= kNoClass && request.classes[i] < info.classes) continue;
    return CheckClass(fmt::format("classes[{}]", i), request.classes[i], info);
  }
  return CheckClass("negative_class", request.negative_class, info);
}

absl::Status CheckRouting(const RoutingRule& rule, const SamplerInfo& info) {
  switch (rule.mode) {
    case RoutingMode::kTopK:
      if (rule.top_k == 0) break;
      ATOLL_RETURN_IF_ERROR(
          CheckRange("top_k", rule.top_k, 1, info.experts, fmt::format(", the experts of model '{}'", info.model)));
      break;
    case RoutingMode::kThreshold:
      ATOLL_RETURN_IF_ERROR(CheckProbability("threshold", rule.threshold));
      break;
    case RoutingMode::kFull:
      break;
    case RoutingMode::kOracle:
      if (rule.oracle_expert < 0 || rule.oracle_expert >= info.experts) {
        return FieldError("oracle_expert", "UNKNOWN_EXPERT",
                          fmt::format("expected 0 to {}, the experts of model '{}', found {}", info.experts - 1,
                                      info.model, rule.oracle_expert));
      }
      break;
    case RoutingMode::kNucleus:
      ATOLL_RETURN_IF_ERROR(CheckProbability("nucleus_p", rule.nucleus_p));
      break;
  }
  return CheckRange("temperature", rule.temperature, kMinTemperature, kMaxTemperature, ", or none for 1");
}

absl::Status CheckTimes(const SampleRequest& request, const SamplerLimits& limits) {
  const std::vector<double>& times = request.times;
  if (times.empty()) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(CheckTimesCount(times.size(), limits));
  if (request.steps != 0 && static_cast<size_t>(request.steps) != times.size() - 1) {
    return FieldError(
        "steps", "STEPS_MISMATCH",
        fmt::format("expected none or {}, one less than the times, found {}", times.size() - 1, request.steps));
  }
  // Each written so that NaN fails.
  if (!(times.front() <= 1.0)) {
    return OutOfRange("times[0]", fmt::format("expected at most 1, found {}", times.front()));
  }
  for (size_t i = 1; i < times.size(); ++i) {
    if (times[i] <= times[i - 1] - kMinStepLength) continue;
    return FieldError(fmt::format("times[{}]", i), "TIMES_NOT_FALLING",
                      fmt::format("expected at least {} less than the {} before it, found {}", kMinStepLength,
                                  times[i - 1], times[i]));
  }
  if (times.back() != 0.0) {
    return OutOfRange(fmt::format("times[{}]", times.size() - 1),
                      fmt::format("expected 0, the data, as the last, found {}", times.back()));
  }
  return absl::OkStatus();
}

absl::Status CheckGuidance(double guidance, const SampleRequest& request) {
  ATOLL_RETURN_IF_ERROR(CheckRange("guidance", guidance, 0, kMaxGuidance));
  ATOLL_RETURN_IF_ERROR(CheckRange("guidance_from", request.guidance_from, 0, 1));
  return CheckRange("guidance_to", request.guidance_to, request.guidance_from, 1, ", from guidance_from on");
}

absl::Status CheckInitImages(const SampleRequest& request, const SamplerInfo& info, int32_t steps) {
  ATOLL_RETURN_IF_ERROR(CheckInitCount(request.init_images.size(), request.classes.size()));
  for (size_t i = 0; i < request.init_images.size(); ++i) {
    const InitImage& init = request.init_images[i];
    const auto values = static_cast<int64_t>(init.pixels->size());
    const bool fits = init.channels == 0
                          ? values == info.pixels()
                          : init.channels == info.channels && init.height == info.height && init.width == info.width;
    if (fits) continue;
    const std::string found = init.channels == 0 ? fmt::format("{} values", values)
                                                 : fmt::format("[{}, {}, {}]", init.channels, init.height, init.width);
    return FieldError(fmt::format("init_images[{}]", i), "INIT_IMAGE_SHAPE",
                      fmt::format("expected [{}, {}, {}], the shape that model '{}' draws, found {}", info.channels,
                                  info.height, info.width, info.model, found));
  }
  if (!request.strength.has_value()) return absl::OkStatus();
  if (request.init_images.empty()) {
    return FieldError("strength", "STRENGTH_WITHOUT_IMAGE",
                      fmt::format("expected init_images beside a strength of {}, found none", *request.strength));
  }
  if (!request.times.empty()) {
    return FieldError("strength", "STRENGTH_MISMATCH",
                      fmt::format("expected none with times, whose first one, {}, is the strength; found {}",
                                  request.times.front(), *request.strength));
  }
  const double least = steps * kMinStepLength;
  // The bound that the message names must pass, though the product is rounded.
  if (!(*request.strength >= least * (1 - 1e-9) && *request.strength <= 1.0)) {
    return OutOfRange("strength",
                      fmt::format("expected {:g} (for {} steps) to 1, found {}", least, steps, *request.strength));
  }
  return absl::OkStatus();
}

double StartOf(const SampleRequest& request) {
  if (!request.times.empty()) return request.times.front();
  return request.init_images.empty() ? 1.0 : request.strength.value_or(kDefaultStrength);
}

uint64_t SeedOf(const std::vector<uint64_t>& seeds, size_t image) {
  if (seeds.empty()) return image;
  return seeds.size() == 1 ? seeds[0] + image : seeds[image];
}

}  // namespace

absl::Status CheckCounts(size_t images, size_t seeds, const SamplerLimits& limits) {
  if (images == 0) {
    return FieldError("classes", "NO_IMAGES",
                      fmt::format("expected 1 to {} entries, one per image, found none", limits.max_images));
  }
  if (images > static_cast<size_t>(limits.max_images)) {
    return FieldError("classes", "TOO_MANY_IMAGES",
                      fmt::format("expected at most {} images in one request, found {}", limits.max_images, images));
  }
  if (seeds > 1 && seeds != images) {
    return FieldError("seeds", "SEED_COUNT_MISMATCH",
                      fmt::format("expected none, 1 or {} seeds, one per image, found {}", images, seeds));
  }
  return absl::OkStatus();
}

absl::Status CheckInitCount(size_t init_images, size_t images) {
  if (init_images <= 1 || init_images == images) return absl::OkStatus();
  return FieldError("init_images", "INIT_IMAGE_COUNT",
                    fmt::format("expected none, 1 or {}, one per image, found {}", images, init_images));
}

absl::Status CheckTimesCount(size_t times, const SamplerLimits& limits) {
  if (times == 0 || (times >= 2 && times <= static_cast<size_t>(limits.max_steps) + 1)) return absl::OkStatus();
  return FieldError("times", "TIMES_COUNT",
                    fmt::format("expected 2 to {} times, one more than steps, found {}", limits.max_steps + 1, times));
}

std::vector<SolverStep> SampleOrder::Grid() const {
  return times.empty() ? TimeGrid(solver, steps, start) : TimeGrid(solver, times);
}

absl::StatusOr<SampleOrder> ResolveRequest(const SampleRequest& request, const SamplerInfo& info,
                                           const SamplerLimits& limits) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(request.classes.size(), request.seeds.size(), limits));
  ATOLL_RETURN_IF_ERROR(CheckClasses(request, info));
  RoutingRule routing = request.routing;
  if (request.default_routing) {
    // A temperature may be asked for whatever the rule is.
    routing = info.defaults.routing;
    if (request.routing.temperature != 1.0) routing.temperature = request.routing.temperature;
  }
  ATOLL_RETURN_IF_ERROR(CheckRouting(routing, info));
  if (info.latent && request.format == ImageFormat::kPng) {
    return FieldError("format", "LATENT_MODEL",
                      fmt::format("expected raw: model '{}' makes latents of [{}, {}, {}], which are no pixels; found "
                                  "PNG",
                                  info.model, info.channels, info.height, info.width));
  }
  const int32_t default_steps = std::min(info.defaults.steps, limits.max_steps);
  if (request.steps != 0) {
    ATOLL_RETURN_IF_ERROR(
        CheckRange("steps", request.steps, 1, limits.max_steps, fmt::format(", or none for {}", default_steps)));
  }
  ATOLL_RETURN_IF_ERROR(CheckTimes(request, limits));
  const double guidance = request.guidance.value_or(info.defaults.guidance);
  ATOLL_RETURN_IF_ERROR(CheckGuidance(guidance, request));
  const int32_t steps = request.steps == 0 ? default_steps : request.steps;
  ATOLL_RETURN_IF_ERROR(CheckInitImages(request, info, steps));
  ATOLL_RETURN_IF_ERROR(CheckRange("priority", request.priority, 0, kMaxPriority));
  ATOLL_RETURN_IF_ERROR(CheckRange("preview_every", request.preview_every, 0, std::numeric_limits<int32_t>::max()));
  SampleOrder order;
  order.images.reserve(request.classes.size());
  for (size_t i = 0; i < request.classes.size(); ++i) {
    ImageOrder& image = order.images.emplace_back();
    image.class_label = request.classes[i];
    image.seed = SeedOf(request.seeds, i);
    if (!request.init_images.empty()) {
      image.init = request.init_images[request.init_images.size() == 1 ? 0 : i].pixels;
    }
  }
  order.routing = routing;
  if (order.routing.mode == RoutingMode::kTopK && order.routing.top_k == 0) order.routing.top_k = 1;
  order.solver = request.default_solver ? info.defaults.solver : request.solver;
  order.steps = request.times.empty() ? steps : static_cast<int32_t>(request.times.size()) - 1;
  order.guidance = guidance;
  order.format = request.format;
  order.times = request.times;
  order.allow_expert_loss = request.allow_expert_loss;
  order.start = StartOf(request);
  order.guidance_from = request.guidance_from;
  order.guidance_to = request.guidance_to;
  order.negative_class = request.negative_class;
  order.priority = request.priority;
  order.reproducible = request.reproducible;
  order.preview_every = request.preview_every;
  return order;
}

}  // namespace atl::router
