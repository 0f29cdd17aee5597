#include "router/policy/request.h"

#include <cmath>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

absl::Status CheckClasses(const SampleRequest& request, const SamplerInfo& info) {
  for (size_t i = 0; i < request.classes.size(); ++i) {
    const int32_t label = request.classes[i];
    if (label >= kNoClass && label < info.classes) continue;
    const std::string known = info.classes == 0 ? fmt::format("{} (the model has no classes)", kNoClass)
                                                : fmt::format("0 to {}, or {} for none", info.classes - 1, kNoClass);
    return FieldError(fmt::format("classes[{}]", i), "UNKNOWN_CLASS",
                      fmt::format("expected a class of model '{}', {}, found {}", info.model, known, label));
  }
  return absl::OkStatus();
}

absl::Status CheckRouting(const RoutingRule& rule, const SamplerInfo& info) {
  switch (rule.mode) {
    case RoutingMode::kTopK:
      if (rule.top_k < 0 || rule.top_k > info.experts) {
        return FieldError(
            "top_k", "TOP_K_OUT_OF_RANGE",
            fmt::format("expected 1 to {}, the experts of model '{}', found {}", info.experts, info.model, rule.top_k));
      }
      break;
    case RoutingMode::kThreshold:
      // Written so that NaN fails.
      if (!(rule.threshold > 0.0 && rule.threshold <= 1.0)) {
        return FieldError("threshold", "THRESHOLD_OUT_OF_RANGE",
                          fmt::format("expected a probability above 0 and at most 1, found {}", rule.threshold));
      }
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
  }
  return absl::OkStatus();
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

absl::StatusOr<SampleOrder> ResolveRequest(const SampleRequest& request, const SamplerInfo& info,
                                           const SamplerLimits& limits) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(request.classes.size(), request.seeds.size(), limits));
  ATOLL_RETURN_IF_ERROR(CheckClasses(request, info));
  ATOLL_RETURN_IF_ERROR(CheckRouting(request.routing, info));
  if (info.latent && request.format == ImageFormat::kPng) {
    return FieldError("format", "LATENT_MODEL",
                      fmt::format("expected raw: model '{}' makes latents of [{}, {}, {}], which are no pixels; found "
                                  "PNG",
                                  info.model, info.channels, info.height, info.width));
  }
  if (request.steps < 0 || request.steps > limits.max_steps) {
    return FieldError(
        "steps", "STEPS_OUT_OF_RANGE",
        fmt::format("expected 1 to {}, or 0 for {}, found {}", limits.max_steps, kDefaultSteps, request.steps));
  }
  const double guidance = request.guidance.value_or(kDefaultGuidance);
  if (!(guidance >= 0.0 && guidance <= kMaxGuidance)) {
    return FieldError("guidance", "GUIDANCE_OUT_OF_RANGE",
                      fmt::format("expected 0 to {}, found {}", kMaxGuidance, guidance));
  }
  SampleOrder order;
  order.images.reserve(request.classes.size());
  for (size_t i = 0; i < request.classes.size(); ++i) {
    order.images.push_back({.class_label = request.classes[i], .seed = SeedOf(request.seeds, i)});
  }
  order.routing = request.routing;
  if (order.routing.mode == RoutingMode::kTopK && order.routing.top_k == 0) order.routing.top_k = 1;
  order.solver = request.solver;
  order.steps = request.steps == 0 ? std::min(kDefaultSteps, limits.max_steps) : request.steps;
  order.guidance = guidance;
  order.format = request.format;
  return order;
}

}  // namespace atl::router
