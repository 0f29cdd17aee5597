#include "common/planner/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::planner {
namespace {

using schedule::GeneratorInfo;

// Plans that are longer by less than this count as equally short, and memory decides: with frozen work, because the run
// time still moves its pieces; without, because only rounding separates equal plans.
constexpr double kTieWithFrozen = 1.01;
constexpr double kTie = 1.001;
// More micro-batches than this per rank of a pipeline shorten the ramp by little.
constexpr int32_t kMicroBatchesPerRank = 8;
constexpr int32_t kFewMicroBatches = 32;
// Plans that have their frozen work placed, besides the best of each schedule.
constexpr size_t kMostFilled = 12;
// Shapes for which an adaptive schedule is searched, among those sketched with ZBV.
constexpr size_t kMostAdaptive = 2;
constexpr size_t kMostSketched = 12;
constexpr int32_t kEffortOfSearch = 2;
constexpr int32_t kEffortOfPlan = 64;

bool IsAuto(const spec::PipelineSpec& pipeline) {
  return pipeline.schedule == "auto";
}

// Micro-batches that an "auto" may choose from, within the sizes that were measured.
std::vector<int32_t> MicroBatchChoices(const PlanRequest& request, int32_t ranks, int32_t batch) {
  if (request.pipeline.micro_batches > 0) {
    return batch % request.pipeline.micro_batches == 0 ? std::vector<int32_t>{request.pipeline.micro_batches}
                                                       : std::vector<int32_t>{};
  }
  const auto& sizes = request.profile.layers;
  const bool measured = sizes.size() > 1;
  std::vector<int32_t> choices;
  std::vector<int32_t> all;
  for (int32_t count = 1; count <= std::min(batch, std::max(kFewMicroBatches, kMicroBatchesPerRank * ranks)); ++count) {
    if (batch % count != 0) continue;
    all.push_back(count);
    const int32_t size = batch / count;
    if (measured && (size < sizes.begin()->first || size > sizes.rbegin()->first)) continue;
    choices.push_back(count);
  }
  return choices.empty() ? all : choices;
}

// The share of ZBV's memory with which the bubble is as long as the frozen work: by the memory-bubble line of adaptive
// schedules, 6 p - 1 - 3 m chunk passes of bubble with m half micro-batches of memory. Not below what V-Min holds.
double FillingShare(const Shape& shape, const Outline& with_zbv) {
  const double ranks = shape.ranks;
  const double frozen = with_zbv.frozen_seconds / ranks;
  double compute = 0;
  for (const auto& rank : with_zbv.simulation.ranks) {
    for (const schedule::SimulatedAction& action : rank) compute += action.end_seconds - action.start_seconds;
  }
  if (compute <= 0) return 1;
  const double frozen_passes = 6 * frozen / (compute / ranks / shape.micro_batches);
  return std::min(1.0, std::max((6 * ranks - 1 - frozen_passes) / (6 * ranks), (ranks + 4) / (3 * ranks)));
}

}  // namespace

absl::Status CheckStages(const PlanRequest& request, const GeneratorInfo& generator) {
  const spec::PipelineSpec& pipeline = request.pipeline;
  const int32_t ranks = request.ranks / std::max(1, pipeline.replicas);  // of one pipeline, at most
  const int64_t most = int64_t{ranks} * generator.stages_per_rank;
  if (pipeline.stages < 0 || pipeline.stages > most) {
    return FieldError(
        "pipeline.stages", "STAGES_OUT_OF_RANGE",
        fmt::format("expected 0 ({} per rank) to {} (the ranks of the island{}, {} stages each), found {}",
                    generator.stages_per_rank, most,
                    pipeline.replicas > 1 ? fmt::format(" over {} replicas", pipeline.replicas) : "",
                    generator.stages_per_rank, pipeline.stages));
  }
  if (pipeline.stages % generator.stages_per_rank != 0) {
    return FieldError("pipeline.stages", "STAGES_OUT_OF_RANGE",
                      fmt::format("expected a multiple of the {} stages that {} puts on every rank, found {}",
                                  generator.stages_per_rank, generator.name, pipeline.stages));
  }
  const int32_t layers = request.profile.layer_count();
  if (std::max(pipeline.stages, generator.stages_per_rank) > layers) {
    return FieldError("pipeline.stages", "STAGES_OUT_OF_RANGE",
                      fmt::format("expected 1 to {} (the layers of the model), found {}", layers,
                                  std::max(pipeline.stages, generator.stages_per_rank)));
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const PlanRequest& request) {
  if (request.ranks < 1) {
    return FieldError("ranks", "RANKS_OUT_OF_RANGE", fmt::format("expected at least 1, found {}", request.ranks));
  }
  ATOLL_RETURN_IF_ERROR(CheckProfile(request.profile));
  if (!(request.self_conditioning_rate >= 0 && request.self_conditioning_rate <= 1)) {
    return FieldError("training.self_conditioning_rate", "OUT_OF_RANGE",
                      fmt::format("expected 0 to 1, found {}", request.self_conditioning_rate));
  }
  if (!request.components.empty() && request.components.size() != request.profile.frozen.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "PROFILE_INVALID",
                     fmt::format("profile: expected {} frozen components, as the model has, found {}",
                                 request.components.size(), request.profile.frozen.size()));
  }
  for (size_t c = 0; c < request.components.size(); ++c) {
    const FrozenComponentProfile& found = request.profile.frozen[c];
    if (static_cast<size_t>(request.components[c].layers) == found.layers.size()) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, "PROFILE_INVALID",
                     fmt::format("profile: expected {} layers of frozen component {} ({}), as the model has, found {}",
                                 request.components[c].layers, c, found.name, found.layers.size()));
  }
  const spec::PipelineSpec& pipeline = request.pipeline;
  if (pipeline.replicas < 0 || pipeline.replicas > request.ranks) {
    return FieldError("pipeline.replicas", "REPLICAS_OUT_OF_RANGE",
                      fmt::format("expected 0 (the planner's choice) to {} (the ranks of the island), found {}",
                                  request.ranks, pipeline.replicas));
  }
  const int64_t parts = int64_t{std::max(1, pipeline.micro_batches)} * std::max(1, pipeline.replicas);
  if (pipeline.micro_batches < 0 || request.batch_size < 1 || request.batch_size % parts != 0) {
    return FieldError(
        "pipeline.micro_batches", "BATCH_NOT_DIVISIBLE",
        fmt::format("expected 0 (the planner's choice) or a divisor of the batch of {}{}, found {}", request.batch_size,
                    pipeline.replicas > 1 ? fmt::format(" over {} replicas", pipeline.replicas) : "",
                    pipeline.micro_batches));
  }
  return absl::OkStatus();
}

std::vector<Shape> ShapesOf(const PlanRequest& request, const GeneratorInfo& generator) {
  const spec::PipelineSpec& pipeline = request.pipeline;
  const int32_t layers = request.profile.layer_count();
  std::vector<Shape> shapes;
  for (int32_t replicas = std::max(1, pipeline.replicas);
       replicas <= (pipeline.replicas > 0 ? pipeline.replicas : request.ranks); ++replicas) {
    if (request.batch_size % replicas != 0) continue;
    // Uses as many ranks as are useful: a rank without a layer would only be one more that can fail.
    const int32_t most = std::min(request.ranks / replicas, layers / generator.stages_per_rank);
    int32_t first = IsAuto(pipeline) ? 1 : most;
    int32_t last = most;
    if (pipeline.stages > 0) {
      if (pipeline.stages % generator.stages_per_rank != 0) continue;
      first = last = pipeline.stages / generator.stages_per_rank;
      if (first > most) continue;
    }
    for (int32_t ranks = std::max(1, first); ranks <= last; ++ranks) {
      for (const int32_t count : MicroBatchChoices(request, ranks, request.batch_size / replicas)) {
        shapes.push_back({std::string(generator.name), ranks, replicas, count});
      }
    }
  }
  return shapes;
}

void Search::Add(const std::vector<Shape>& shapes) {
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < shapes.size(); ++i) order.emplace_back(evaluator_.LeastSeconds(shapes[i]), i);
  std::sort(order.begin(), order.end());
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& [least, i] : order) {
    if (least > shortest * kTieWithFrozen) break;
    absl::StatusOr<Outline> outline = evaluator_.Work(shapes[i]);
    if (outline.ok()) {
      shortest = std::min(shortest, outline->estimate_seconds);
      Plan plan = outline->plan;
      const double seconds = outline->estimate_seconds;
      found_.push_back({*std::move(outline), std::move(plan), seconds});
    } else if (ErrorReason(outline.status()) == "MEMORY_LIMIT") {
      too_large_.push_back(shapes[i]);
    } else if (refused_.ok()) {
      refused_ = outline.status();
    }
  }
}

void Search::AddAdaptive(const std::vector<Shape>& shapes) {
  struct Sketch {
    double seconds = 0;
    Shape shape;
    Outline with_zbv;
  };
  std::vector<Sketch> sketches;
  for (const Shape& shape : shapes) sketches.push_back({.seconds = evaluator_.LeastSeconds(shape), .shape = shape});
  const auto shorter = [](const Sketch& x, const Sketch& y) { return x.seconds < y.seconds; };
  std::stable_sort(sketches.begin(), sketches.end(), shorter);
  sketches.resize(std::min(sketches.size(), kMostSketched));
  for (Sketch& sketch : sketches) {
    Shape shape = sketch.shape;
    shape.schedule = "zbv";
    absl::StatusOr<Outline> outline = evaluator_.Work(shape);
    sketch.seconds = outline.ok() ? outline->estimate_seconds : std::numeric_limits<double>::infinity();
    if (outline.ok()) sketch.with_zbv = *std::move(outline);
  }
  std::stable_sort(sketches.begin(), sketches.end(), shorter);
  sketches.resize(std::min(sketches.size(), kMostAdaptive));
  for (Sketch& sketch : sketches) {
    Add({sketch.shape});
    const double share = FillingShare(sketch.shape, sketch.with_zbv);
    if (share >= 1 || request_.pipeline.fill == "never") continue;
    sketch.shape.memory_share = share;
    Add({sketch.shape});
  }
}

absl::Status Search::CompleteOne(Found* found, int32_t effort) {
  ATOLL_ASSIGN_OR_RETURN(found->plan, evaluator_.Complete(found->outline, effort));
  found->seconds = ExpectedSeconds(found->plan.predicted, request_.self_conditioning_rate);
  found->complete = true;
  return absl::OkStatus();
}

std::optional<size_t> Search::BestOf(std::string_view schedule) const {
  std::optional<size_t> best;
  for (size_t i = 0; i < found_.size(); ++i) {
    if (found_[i].outline.plan.generator != schedule) continue;
    if (!best.has_value() || found_[i].seconds < found_[*best].seconds) best = i;
  }
  return best;
}

absl::Status Search::Complete() {
  std::vector<size_t> order(found_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    // Among equals, those with the least memory come first: they win.
    const double by_time = found_[a].seconds - found_[b].seconds;
    if (std::abs(by_time) > 1e-9 * found_[a].seconds) return by_time < 0;
    return PeakBytes(found_[a].plan) < PeakBytes(found_[b].plan);
  });
  if (request_.profile.frozen.empty()) {
    for (Found& found : found_) found.complete = true;
    return absl::OkStatus();
  }
  std::vector<std::string_view> names = schedule::GeneratorNames();
  names.push_back(kAdaptive.name);
  for (const std::string_view name : names) {
    if (const auto best = BestOf(name)) ATOLL_RETURN_IF_ERROR(CompleteOne(&found_[*best], kEffortOfSearch));
  }
  for (size_t i = 0; i < std::min(order.size(), kMostFilled); ++i) {
    if (!found_[order[i]].complete) ATOLL_RETURN_IF_ERROR(CompleteOne(&found_[order[i]], kEffortOfSearch));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> Search::Best(bool memory_decides) {
  std::optional<size_t> best;
  for (size_t i = 0; i < found_.size(); ++i) {
    if (found_[i].complete && (!best.has_value() || found_[i].seconds < found_[*best].seconds)) best = i;
  }
  if (!best.has_value()) return too_large_.empty() ? refused_ : MemoryError();
  if (!memory_decides) return *best;
  const double within = found_[*best].seconds * (request_.profile.frozen.empty() ? kTie : kTieWithFrozen);
  for (size_t i = 0; i < found_.size(); ++i) {
    if (!found_[i].complete || found_[i].seconds > within) continue;
    if (PeakBytes(found_[i].plan) < PeakBytes(found_[*best].plan)) best = i;
  }
  return *best;
}

absl::Status Search::Improve(size_t i) {
  if (request_.profile.frozen.empty()) return absl::OkStatus();
  return CompleteOne(&found_[i], kEffortOfPlan);
}

bool Search::TooLarge(std::string_view schedule) const {
  return std::any_of(too_large_.begin(), too_large_.end(),
                     [&](const Shape& shape) { return shape.schedule == schedule; });
}

absl::Status Search::MemoryError() {
  // For each schedule, the shape with the most ranks and the smallest micro-batches holds the least on a rank.
  std::vector<Shape> smallest;
  for (const Shape& shape : too_large_) {
    const auto same = std::find_if(smallest.begin(), smallest.end(),
                                   [&](const Shape& other) { return other.schedule == shape.schedule; });
    if (same == smallest.end()) {
      smallest.push_back(shape);
    } else if (std::pair(shape.ranks, shape.micro_batches) > std::pair(same->ranks, same->micro_batches)) {
      *same = shape;
    }
  }
  double least = std::numeric_limits<double>::infinity();
  const Shape* holder = nullptr;
  for (const Shape& shape : smallest) {
    const absl::StatusOr<double> bytes = evaluator_.LeastBytes(shape);
    if (!bytes.ok() || *bytes >= least) continue;
    least = *bytes;
    holder = &shape;
  }
  if (holder == nullptr) return refused_;
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "MEMORY_LIMIT",
      fmt::format("pipeline.memory: expected at least {:.0f} bytes per rank ({} on {} ranks, {} micro-batches of {}), "
                  "found {:.0f}",
                  std::ceil(least), holder->schedule, holder->ranks, holder->micro_batches,
                  request_.batch_size / holder->replicas / holder->micro_batches, limit_bytes_));
}

}  // namespace atl::planner
