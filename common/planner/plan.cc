#include "common/planner/plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/planner/frozen_cache.h"
#include "common/planner/search.h"
#include "common/schedule/generators.h"
#include "common/spec/spec_io.h"

namespace atl::planner {
namespace {

using schedule::GeneratorInfo;

// Smaller differences are 0.0 %.
constexpr double kShown = 0.0005;

bool IsAuto(const PlanRequest& request) {
  return request.pipeline.schedule == "auto";
}

absl::StatusOr<double> LimitOf(const PlanRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes, spec::ParseMemory("pipeline.memory", request.pipeline.memory));
  return bytes > 0 ? static_cast<double>(bytes) : request.device_memory_bytes;
}

// The facts for the choice of a cache: what the outputs cost, and how much of that one plan leaves exposed.
FrozenCacheFacts CacheFacts(const PlanRequest& request, const Found* found) {
  FrozenCacheFacts facts = request.frozen_inputs;
  facts.cache_exists = false;
  if (found == nullptr) {
    facts.samples = 0;
    return facts;
  }
  const Plan& plan = found->plan;
  const int32_t batch = plan.micro_batches * plan.micro_batch_size;
  double seconds = 0;
  for (size_t c = 0; c < request.profile.frozen.size(); ++c) {
    const std::vector<FrozenLayerProfile>& layers = request.profile.frozen[c].layers;
    for (const FrozenLayerProfile& layer : layers) seconds += FrozenSeconds(layer, batch);
    const bool read = plan.components[c].to_first_stage || plan.components[c].to_last_stage;
    facts.bytes_per_sample += read ? layers.back().output_bytes : 0;
  }
  facts.compute_seconds = seconds / batch;
  const double without = found->outline.simulation.makespan_seconds + found->outline.optimizer_seconds;
  const double exposed = plan.predicted.iteration_seconds - without;
  facts.exposed_fraction = seconds > 0 ? std::clamp(exposed / seconds, 0.0, 1.0) : 0;
  return facts;
}

// Why frozen outputs are, or are not, computed in every iteration. Empty when nothing is frozen.
absl::StatusOr<std::string> CacheReason(const PlanRequest& request, const Found* found) {
  if (request.profile.frozen.empty()) return std::string();
  const std::string& wanted = request.pipeline.frozen_cache;
  ATOLL_ASSIGN_OR_RETURN(const FrozenCacheDecision decision, DecideFrozenCache(wanted == "always" ? FrozenCache::kAlways
                                                                               : wanted == "never" ? FrozenCache::kNever
                                                                                                   : FrozenCache::kAuto,
                                                                               CacheFacts(request, found)));
  return decision.reason;
}

// Of the frozen work, by its time: what runs before its rank's last other action.
double FilledShare(const Plan& plan, const Profile& profile) {
  double all = 0;
  double filled = 0;
  for (const auto& rank : plan.schedule.ranks) {
    double since_last = 0;
    for (const schedule::Action& action : rank) {
      if (action.kind != schedule::ActionKind::kFrozen) {
        filled += std::exchange(since_last, 0);
        continue;
      }
      const FrozenPiece& piece = plan.frozen[action.micro_batch];
      double seconds = 0;
      for (int32_t layer = piece.first_layer; layer < piece.end_layer; ++layer) {
        seconds += FrozenSeconds(profile.frozen[piece.component].layers[layer], piece.samples);
      }
      since_last += seconds;
      all += seconds;
    }
  }
  return all > 0 ? filled / all : 0;
}

std::string Counted(int64_t count, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", count, count == 1 ? one : more);
}

std::string Reason(const PlanRequest& request, const Search& search, size_t best, const std::string& cache) {
  const Plan& plan = search.found(best).plan;
  std::vector<int32_t> layers;
  for (const StagePlacement& stage : plan.stages) layers.push_back(stage.end_layer - stage.first_layer);
  std::string reason = fmt::format(
      "{} on {} of {}{} as {} layers per stage; {} of {} of {}", Counted(plan.layer_count(), "layer", "layers"),
      plan.rank_count(), Counted(request.ranks, "rank", "ranks"),
      plan.replicas > 1 ? fmt::format(", {} replicas,", plan.replicas) : "", fmt::join(layers, "+"), plan.generator,
      Counted(plan.micro_batches, "micro-batch", "micro-batches"), plan.micro_batch_size);
  if (!plan.recomputed_layers.empty()) {
    const size_t count = plan.recomputed_layers.size();
    reason += fmt::format("; {} computed again {}", Counted(static_cast<int64_t>(count), "layer is", "layers are"),
                          request.pipeline.recompute == "always" ? "as asked for" : "to save memory");
  }
  reason += fmt::format("; predicted bubble {:.1f} %", 100 * plan.predicted.bubble);
  if (!plan.frozen.empty()) {
    reason += fmt::format(", with frozen work in {}, {:.0f} % of it in bubbles, {}",
                          Counted(static_cast<int64_t>(plan.frozen.size()), "piece", "pieces"),
                          100 * FilledShare(plan, request.profile), cache);
  }
  if (plan.is_self_conditioned()) {
    reason +=
        fmt::format("; {:.4g} ms per iteration, {:.4g} ms where the model sees its own estimate ({:.4g} % of steps)",
                    1000 * plan.predicted.iteration_seconds, 1000 * plan.predicted.self_conditioned_seconds,
                    100 * request.self_conditioning_rate);
  }
  if (IsAuto(request)) {
    reason +=
        fmt::format("; {:.4g} ms per iteration{}, the shortest of {} plans, or as short with less memory",
                    1000 * search.found(best).seconds, plan.is_self_conditioned() ? " on average" : "", search.tried());
  }
  return reason;
}

Candidate RowOf(const Found& found) {
  const Plan& plan = found.plan;
  return {.schedule = plan.generator,
          .ranks = plan.schedule.rank_count(),
          .stages = plan.schedule.stages,
          .replicas = plan.replicas,
          .micro_batches = plan.micro_batches,
          .micro_batch_size = plan.micro_batch_size,
          .recomputed_layers = static_cast<int32_t>(plan.recomputed_layers.size()),
          .frozen_pieces = static_cast<int32_t>(plan.frozen.size()),
          .predicted = plan.predicted,
          .expected_seconds = found.seconds,
          .bound_seconds = found.outline.bound_seconds};
}

std::string WhyNot(const PlanRequest& request, const Found& best, const Found& other) {
  const double longer = other.seconds / best.seconds - 1;
  if (longer > 0.001) return fmt::format("{:.1f} % longer", 100 * longer);
  if (!IsAuto(request)) {
    return longer < -kShown ? fmt::format("not asked for: {:.1f} % shorter", -100 * longer) : "not asked for, as long";
  }
  const double more = PeakBytes(other.plan) / PeakBytes(best.plan) - 1;
  if (more < 0) return longer < kShown ? "a little longer" : fmt::format("{:.1f} % longer", 100 * longer);
  return more < 0.005 ? "as long, and holds as much" : fmt::format("as long, but holds {:.0f} % more", 100 * more);
}

// All schedules, at their best or beside the plan.
std::vector<Candidate> Table(const PlanRequest& request, const Search& search, size_t best) {
  std::vector<Candidate> rows;
  const Plan& plan = search.found(best).plan;
  for (const GeneratorInfo& generator : schedule::Generators()) {
    if (generator.name == plan.generator) {
      rows.push_back(RowOf(search.found(best)));
      rows.back().chosen = true;
      continue;
    }
    const std::optional<size_t> other = search.BestOf(generator.name);
    if (other.has_value()) {
      rows.push_back(RowOf(search.found(*other)));
      rows.back().why_not = WhyNot(request, search.found(best), search.found(*other));
    } else {
      rows.push_back({.schedule = std::string(generator.name),
                      .why_not = search.TooLarge(generator.name) ? "does not fit the memory"
                                                                 : "does not fit the layers and ranks"});
    }
  }
  const std::optional<size_t> adaptive = search.BestOf(kAdaptive.name);
  if (adaptive.has_value()) {
    const bool chosen = plan.generator == kAdaptive.name;
    rows.push_back(RowOf(search.found(chosen ? best : *adaptive)));
    rows.back().chosen = chosen;
    if (!chosen) rows.back().why_not = WhyNot(request, search.found(best), search.found(*adaptive));
  }
  return rows;
}

absl::StatusOr<PlanChoice> Choose(const PlanRequest& request, bool compare) {
  ATOLL_RETURN_IF_ERROR(CheckRequest(request));
  ATOLL_ASSIGN_OR_RETURN(const double limit, LimitOf(request));
  ATOLL_RETURN_IF_ERROR(CacheReason(request, /*found=*/nullptr).status());
  Search search(request, limit);
  if (IsAuto(request)) {
    for (const GeneratorInfo& generator : schedule::Generators()) search.Add(ShapesOf(request, generator));
    search.AddAdaptive(ShapesOf(request, kAdaptive));
    if (search.tried() == 0 && !search.AnyTooLarge()) {
      ATOLL_RETURN_IF_ERROR(CheckStages(request, schedule::Generators().front()));
    }
  } else {
    const auto generator = schedule::FindGenerator(request.pipeline.schedule);
    if (!generator.ok()) {
      return FieldError("pipeline.schedule", ErrorReason(generator.status()),
                        std::string(generator.status().message()));
    }
    ATOLL_RETURN_IF_ERROR(CheckStages(request, *generator));
    search.Add(ShapesOf(request, *generator));
  }
  ATOLL_RETURN_IF_ERROR(search.Complete());
  ATOLL_ASSIGN_OR_RETURN(const size_t best, search.Best(IsAuto(request)));
  ATOLL_RETURN_IF_ERROR(search.Improve(best));
  PlanChoice choice{.plan = search.found(best).plan};
  ATOLL_ASSIGN_OR_RETURN(const std::string cache, CacheReason(request, &search.found(best)));
  choice.plan.reason = Reason(request, search, best, cache);
  if (!compare) return choice;
  if (!IsAuto(request)) {
    const Plan& plan = choice.plan;
    for (const GeneratorInfo& generator : schedule::Generators()) {
      if (generator.name == plan.generator) continue;
      const int32_t ranks =
          std::min(plan.schedule.rank_count(), request.profile.layer_count() / generator.stages_per_rank);
      if (ranks > 0) search.Add({{std::string(generator.name), ranks, plan.replicas, plan.micro_batches}});
    }
    ATOLL_RETURN_IF_ERROR(search.Complete());
  }
  choice.candidates = Table(request, search, best);
  return choice;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(PlanChoice choice, Choose(request, /*compare=*/false));
  return std::move(choice.plan);
}

absl::StatusOr<PlanChoice> ComparePlans(const PlanRequest& request) {
  return Choose(request, /*compare=*/true);
}

}  // namespace atl::planner
