#include "common/planner/evaluate.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/planner/simulation_costs.h"
#include "common/planner/steps.h"
#include "common/schedule/adaptive/adaptive.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

using schedule::ActionKind;

// Returns reduced options, because the adaptive search runs a few times per plan: its default effort is meant for 8
// ranks and 16 micro-batches.
schedule::AdaptiveOptions AdaptiveEffort(const Plan& plan) {
  const double size = static_cast<double>(plan.schedule.rank_count()) * plan.micro_batches / 128;
  const double share = std::clamp(0.5 / size, 0.05, 1.0);
  const schedule::AdaptiveOptions options;
  return {.candidates = static_cast<int32_t>(options.candidates * share),
          .moves = static_cast<int32_t>(options.moves * share)};
}

// Each stage's gradients are summed right after its last weight gradient, beside what other ranks still do.
void AddReductions(schedule::Schedule* schedule) {
  for (auto& rank : schedule->ranks) {
    std::vector<int32_t> left(schedule->stages, 0);
    const auto ends = [](const schedule::Action& action) {
      return action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGradient;
    };
    for (const schedule::Action& action : rank) left[action.stage] += ends(action) ? 1 : 0;
    std::vector<schedule::Action> actions;
    for (const schedule::Action& action : rank) {
      actions.push_back(action);
      if (ends(action) && --left[action.stage] == 0) actions.push_back({ActionKind::kReduce, action.stage, 0});
    }
    rank = std::move(actions);
  }
}

bool SplitsBackward(const schedule::Schedule& schedule) {
  for (const auto& rank : schedule.ranks) {
    for (const schedule::Action& action : rank) {
      if (action.kind == ActionKind::kWeightGradient) return true;
    }
  }
  return false;
}

// Time that a step's actions take, without waiting.
struct Busy {
  double fullest_rank = 0;
  double share = 0;  // of one rank, if all had the same
};

Busy BusyOf(const schedule::Simulation& step) {
  Busy busy;
  for (const auto& rank : step.ranks) {
    double seconds = 0;
    for (const schedule::SimulatedAction& action : rank) seconds += action.end_seconds - action.start_seconds;
    busy.fullest_rank = std::max(busy.fullest_rank, seconds);
    busy.share += seconds / static_cast<double>(step.ranks.size());
  }
  return busy;
}

Recompute RecomputeOf(const spec::PipelineSpec& pipeline) {
  return pipeline.recompute == "always"  ? Recompute::kAlways
         : pipeline.recompute == "never" ? Recompute::kNever
                                         : Recompute::kAuto;
}

// Returns the request's components, or else a chain whose ends the first stage reads.
std::vector<FrozenComponent> ComponentsOf(const PlanRequest& request) {
  if (!request.components.empty()) return request.components;
  std::vector<FrozenComponent> components;
  std::vector<bool> read(request.profile.frozen.size(), false);
  for (const FrozenComponentProfile& component : request.profile.frozen) {
    for (const int32_t from : component.reads) read[from] = true;
    components.push_back({.layers = static_cast<int32_t>(component.layers.size()),
                          .reads = component.reads.empty() ? -1 : component.reads.front()});
  }
  for (size_t c = 0; c < components.size(); ++c) components[c].to_first_stage = !read[c];
  return components;
}

}  // namespace

double PeakBytes(const Plan& plan) {
  const auto& peaks = plan.predicted.peak_bytes;
  return peaks.empty() ? 0 : *std::max_element(peaks.begin(), peaks.end());
}

Evaluator::Evaluator(const PlanRequest& request, double limit_bytes)
    : request_(request), limit_bytes_(limit_bytes), recompute_(RecomputeOf(request.pipeline)) {}

const std::vector<LayerProfile>& Evaluator::Layers(int32_t samples) {
  auto [at, added] = layers_.try_emplace(samples);
  if (added) at->second = LayersAt(request_.profile, samples);
  return at->second;
}

double Evaluator::LeastSeconds(const Shape& shape) {
  const int32_t batch = request_.batch_size / shape.replicas;
  double micro_batch = 0;
  for (const LayerProfile& layer : Layers(batch / shape.micro_batches)) {
    micro_batch += (1 + request_.self_conditioning_rate) * layer.forward_seconds +
                   std::min(layer.backward_seconds, layer.input_gradient_seconds + layer.weight_gradient_seconds);
  }
  double frozen = 0;
  for (const FrozenComponentProfile& component : request_.profile.frozen) {
    for (const FrozenLayerProfile& layer : component.layers) frozen += FrozenSeconds(layer, batch);
  }
  double fastest = 1;
  for (const double slowdown : request_.profile.rank_slowdown) fastest = std::min(fastest, slowdown);
  return fastest * (micro_batch * shape.micro_batches + frozen) / shape.ranks;
}

absl::StatusOr<Partition> Evaluator::Split(const Plan& plan, double limit_bytes, Recompute recompute) {
  const std::vector<LayerProfile>& layers = Layers(plan.micro_batch_size);
  PartitionRequest request{.layers = layers,
                           .rank_of_stage = plan.schedule.rank_of_stage,
                           .micro_batches = plan.micro_batches,
                           .split_backward = SplitsBackward(plan.schedule),
                           .slowdown = SlowdownByRank(plan, request_.profile),
                           .self_conditioning_rate = request_.self_conditioning_rate,
                           .recompute = recompute};
  for (const LayerProfile& layer : layers) {
    request.boundary_seconds.push_back(TransferSeconds(request_.profile, layer.output_bytes));
  }
  if (limit_bytes > 0) {
    // The ranks of frozen layers are not known yet, so each rank leaves room for all of them.
    const double frozen = FrozenBytes(plan, request_.profile);
    request.limit_bytes.assign(plan.schedule.rank_count(), limit_bytes - frozen);
    for (const double bytes : request_.profile.parameter_bytes) request.fixed_bytes.push_back(StateBytes(bytes));
    if (plan.replicas > 1) request.reduce_bytes = request_.profile.parameter_bytes;
    request.held = HeldByRank(plan.schedule);
    return PartitionLayers(request);
  }
  const auto key = std::tuple(plan.replicas, request.rank_of_stage, request.micro_batches, plan.micro_batch_size,
                              request.split_backward);
  const auto known = splits_.find(key);
  if (known != splits_.end()) return known->second;
  ATOLL_ASSIGN_OR_RETURN(Partition partition, PartitionLayers(request));
  return splits_.emplace(key, std::move(partition)).first->second;
}

double Evaluator::OptimizerSeconds(const Plan& plan) const {
  const std::vector<double> slowdown = SlowdownByRank(plan, request_.profile);
  std::vector<double> optimizer(plan.schedule.rank_count(), 0);
  for (const StagePlacement& stage : plan.stages) {
    for (int32_t i = stage.first_layer; i < stage.end_layer; ++i) {
      optimizer[stage.rank] +=
          slowdown[stage.rank] * request_.profile.optimizer_seconds_per_byte * request_.profile.parameter_bytes[i];
    }
  }
  // Clipping needs the gradients of all ranks: their steps begin together.
  return *std::max_element(optimizer.begin(), optimizer.end());
}

absl::Status Evaluator::Predict(Outline* outline) {
  Plan& plan = outline->plan;
  const double rate = request_.self_conditioning_rate;
  ATOLL_ASSIGN_OR_RETURN(Steps steps, SimulateSteps(request_.profile, rate, &plan));
  outline->optimizer_seconds = OptimizerSeconds(plan);
  const int32_t batch = plan.micro_batches * plan.micro_batch_size;
  outline->frozen_seconds = 0;
  for (const FrozenComponentProfile& component : request_.profile.frozen) {
    for (const FrozenLayerProfile& layer : component.layers) outline->frozen_seconds += FrozenSeconds(layer, batch);
  }
  const double frozen_share = outline->frozen_seconds / static_cast<double>(plan.schedule.rank_count());
  const auto bound = [&](const schedule::Simulation& step) {
    const Busy busy = BusyOf(step);
    return std::max(busy.fullest_rank, busy.share + frozen_share) + outline->optimizer_seconds;
  };
  const auto estimate = [&](const schedule::Simulation& step) {
    const double ramp = step.makespan_seconds;
    const double filled =
        request_.pipeline.fill == "never" ? ramp + frozen_share : std::max(ramp, BusyOf(step).share + frozen_share);
    return filled + outline->optimizer_seconds;
  };
  plan.predicted = {estimate(steps.plain), steps.plain.bubble, PeakBytesByRank(steps)};
  outline->bound_seconds = (1 - rate) * bound(steps.plain);
  if (rate > 0) {
    plan.predicted.self_conditioned_seconds = estimate(steps.self_conditioned);
    outline->bound_seconds += rate * bound(steps.self_conditioned);
  }
  outline->estimate_seconds = ExpectedSeconds(plan.predicted, rate);
  outline->costs = std::move(steps.costs);
  outline->simulation = std::move(steps.plain);
  return absl::OkStatus();
}

absl::StatusOr<Outline> Evaluator::Work(const Shape& shape) {
  Outline outline;
  Plan& plan = outline.plan;
  plan.replicas = shape.replicas;
  plan.micro_batches = shape.micro_batches;
  plan.micro_batch_size = request_.batch_size / shape.replicas / shape.micro_batches;
  plan.generator = shape.schedule;
  plan.precision = request_.precision;
  plan.components = ComponentsOf(request_);
  const bool adaptive = shape.schedule == kAdaptive.name;
  ATOLL_ASSIGN_OR_RETURN(plan.schedule,
                         schedule::Generate(adaptive ? "zbv" : shape.schedule, shape.ranks, shape.micro_batches));

  const Recompute first = recompute_ == Recompute::kAlways ? Recompute::kAlways : Recompute::kNever;
  ATOLL_ASSIGN_OR_RETURN(Partition partition, Split(plan, 0, first));
  if (shape.replicas > 1 && !adaptive) AddReductions(&plan.schedule);
  const auto take = [&](Partition&& found) {
    plan.stages = std::move(found.stages);
    plan.recomputed_layers = std::move(found.recomputed_layers);
    return Predict(&outline);
  };
  ATOLL_RETURN_IF_ERROR(take(std::move(partition)));
  if (adaptive) {
    ATOLL_RETURN_IF_ERROR(Adapt(shape.memory_share, &outline));
    return outline;
  }
  if (limit_bytes_ <= 0 || PeakBytes(plan) + FrozenBytes(plan, request_.profile) <= limit_bytes_) return outline;
  ATOLL_ASSIGN_OR_RETURN(partition, Split(plan, limit_bytes_, recompute_));
  ATOLL_RETURN_IF_ERROR(take(std::move(partition)));
  const bool shared_out =
      plan.schedule.stages > plan.schedule.rank_count() && plan.stages.front().rank != plan.stages.back().rank;
  if (shared_out && recompute_ == Recompute::kAuto) ATOLL_RETURN_IF_ERROR(KeepWhatFits(&outline));
  return outline;
}

absl::Status Evaluator::KeepWhatFits(Outline* outline) {
  Plan& plan = outline->plan;
  // Starts from the end: late stages hold few micro-batches, so recomputing their layers saved little.
  const std::vector<int32_t> recomputed = plan.recomputed_layers;
  for (auto layer = recomputed.rbegin(); layer != recomputed.rend(); ++layer) {
    Outline before = *outline;
    std::erase(plan.recomputed_layers, *layer);
    ATOLL_RETURN_IF_ERROR(Predict(outline));
    const bool fits = PeakBytes(plan) + FrozenBytes(plan, request_.profile) <= limit_bytes_;
    if (!fits || outline->estimate_seconds > before.estimate_seconds) *outline = std::move(before);
  }
  return absl::OkStatus();
}

absl::Status Evaluator::Adapt(double memory_share, Outline* outline) {
  Plan& plan = outline->plan;
  const schedule::SimulationCosts& costs = outline->costs;
  double transient = 0;
  for (const schedule::StageCost& stage : costs.stages) {
    transient = std::max({transient, stage.forward_transient_bytes, stage.backward_transient_bytes,
                          request_.self_conditioning_rate > 0 ? stage.self_conditioning_transient_bytes : 0});
  }
  std::vector<double> limits = outline->simulation.peak_activation_bytes;
  for (size_t r = 0; r < limits.size(); ++r) {
    limits[r] *= memory_share;
    if (limit_bytes_ <= 0) continue;
    limits[r] =
        std::min(limits[r], limit_bytes_ - costs.fixed_bytes[r] - transient - FrozenBytes(plan, request_.profile));
    if (limits[r] <= 0) return MakeError(absl::StatusCode::kFailedPrecondition, "MEMORY_LIMIT", "no room to activate");
  }
  absl::StatusOr<schedule::Schedule> found =
      schedule::FindAdaptive(plan.micro_batches, costs, limits, AdaptiveEffort(plan));
  if (!found.ok() && ErrorReason(found.status()) == "SCHEDULE_MEMORY_LIMIT") {
    return MakeError(absl::StatusCode::kFailedPrecondition, "MEMORY_LIMIT", std::string(found.status().message()));
  }
  ATOLL_RETURN_IF_ERROR(found.status());
  plan.schedule = *std::move(found);
  if (plan.replicas > 1) AddReductions(&plan.schedule);
  ATOLL_RETURN_IF_ERROR(Predict(outline));
  // The search knows nothing of what reductions hold.
  if (limit_bytes_ > 0 && plan.replicas > 1 && PeakBytes(plan) + FrozenBytes(plan, request_.profile) > limit_bytes_) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "MEMORY_LIMIT", "no room to sum gradients");
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> Evaluator::Complete(const Outline& outline, int32_t effort) {
  Plan plan = outline.plan;
  if (request_.profile.frozen.empty()) return plan;
  FillRequest fill{.schedule = plan.schedule,
                   .costs = outline.costs,
                   .batch = plan.micro_batches * plan.micro_batch_size,
                   .slowdown = SlowdownByRank(plan, request_.profile),
                   .readers = FrozenReaders(plan),
                   .in_bubbles = request_.pipeline.fill != "never",
                   .effort = effort};
  ATOLL_ASSIGN_OR_RETURN(Fill filled, FillBubbles(fill, request_.profile));
  plan.schedule = std::move(filled.schedule);
  plan.frozen = std::move(filled.pieces);
  ATOLL_ASSIGN_OR_RETURN(const Steps steps, SimulateSteps(request_.profile, request_.self_conditioning_rate, &plan));
  plan.predicted = {filled.iteration_seconds + outline.optimizer_seconds, steps.plain.bubble, PeakBytesByRank(steps)};
  if (plan.is_self_conditioned()) {
    plan.predicted.self_conditioned_seconds =
        IterationSeconds(plan, request_.profile, steps.self_conditioned) + outline.optimizer_seconds;
  }
  return plan;
}

absl::StatusOr<double> Evaluator::LeastBytes(const Shape& shape) {
  Outline outline;
  Plan& plan = outline.plan;
  plan.replicas = shape.replicas;
  plan.micro_batches = shape.micro_batches;
  plan.micro_batch_size = request_.batch_size / shape.replicas / shape.micro_batches;
  const bool adaptive = shape.schedule == kAdaptive.name;
  // V-Min holds about as little as an adaptive schedule can.
  ATOLL_ASSIGN_OR_RETURN(plan.schedule,
                         schedule::Generate(adaptive ? "v-min" : shape.schedule, shape.ranks, shape.micro_batches));
  constexpr int kHalvings = 60;
  double high = 1;
  for (int i = 0; i < kHalvings && !Split(plan, high, recompute_).ok(); ++i) high *= 2;
  double low = high / 2;
  for (int i = 0; i < kHalvings && high - low > high / 1000; ++i) {
    const double middle = (low + high) / 2;
    (Split(plan, middle, recompute_).ok() ? high : low) = middle;
  }
  return high;
}

}  // namespace atl::planner
