#include "router/engine/sampler_info.h"

namespace atl::router {
namespace {

RoutingRule RuleOf(const storage::VersionSampling& sampling) {
  RoutingRule rule;
  if (sampling.mode == "top_k") {
    rule = {.mode = RoutingMode::kTopK, .top_k = sampling.top_k};
  } else if (sampling.mode == "threshold") {
    rule = {.mode = RoutingMode::kThreshold, .threshold = sampling.threshold};
  } else if (sampling.mode == "nucleus") {
    rule = {.mode = RoutingMode::kNucleus, .nucleus_p = sampling.nucleus_p};
  } else {
    rule = {.mode = RoutingMode::kFull};
  }
  if (sampling.temperature != 0) rule.temperature = sampling.temperature;
  return rule;
}

SamplingDefaults DefaultsOf(const storage::VersionSampling& sampling) {
  SamplingDefaults defaults{.routing = RuleOf(sampling)};
  if (sampling.solver == "heun") defaults.solver = Solver::kHeun;
  if (sampling.solver == "multistep") defaults.solver = Solver::kMultistep;
  if (sampling.steps != 0) defaults.steps = sampling.steps;
  defaults.guidance = sampling.guidance.value_or(defaults.guidance);
  return defaults;
}

}  // namespace

SamplerInfo InfoOf(const storage::ModelIndex& index) {
  return {.model = index.name,
          .version = index.version,
          .experts = index.experts,
          .classes = static_cast<int32_t>(index.classes.size()),
          .channels = index.channels,
          .height = index.height,
          .width = index.width,
          .latent = index.latent,
          .self_conditioning = index.self_conditioning,
          .class_names = index.classes,
          .defaults = index.sampling.has_value() ? DefaultsOf(*index.sampling) : SamplingDefaults()};
}

std::shared_ptr<const ServedVersion> ServedOf(const std::shared_ptr<const VersionFiles>& files) {
  struct Kept {
    std::shared_ptr<const VersionFiles> files;
    ServedVersion served;
  };
  const auto kept = std::make_shared<const Kept>(
      Kept{.files = files, .served = {.info = InfoOf(files->index), .digest = files->digest}});
  return {kept, &kept->served};
}

}  // namespace atl::router
