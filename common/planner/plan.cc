#include "common/planner/plan.h"

#include <algorithm>
#include <memory>
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

// Reading speed of kept outputs from a local file on a slow disk.
constexpr double kReadBytesPerSecond = 5e8;

constexpr std::string_view kMemoryLimit = "MEMORY_LIMIT";

bool IsAuto(const PlanRequest& request) {
  return request.pipeline.schedule == "auto";
}

absl::StatusOr<double> LimitOf(const PlanRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(const int64_t bytes, spec::ParseMemory("pipeline.memory", request.pipeline.memory));
  return bytes > 0 ? static_cast<double>(bytes) : request.device_memory_bytes;
}

// Returns the share of the frozen work, by its time, that runs before its rank's last other action.
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

std::string Reason(const PlanRequest& request, const Search& search, size_t best) {
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
    reason += fmt::format(", with frozen work in {}, {:.0f} % of it in bubbles",
                          Counted(static_cast<int64_t>(plan.frozen.size()), "piece", "pieces"),
                          100 * FilledShare(plan, request.profile));
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

// The best plan of a request, and what it was chosen from.
struct Chosen {
  const PlanRequest* request = nullptr;
  std::unique_ptr<Search> search;
  size_t best = 0;

  const Found& found() const { return search->found(best); }
};

absl::StatusOr<Chosen> SearchPlans(const PlanRequest& request, double limit) {
  Chosen chosen{.request = &request, .search = std::make_unique<Search>(request, limit)};
  Search& search = *chosen.search;
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
  ATOLL_ASSIGN_OR_RETURN(chosen.best, search.Best(IsAuto(request)));
  ATOLL_RETURN_IF_ERROR(search.Improve(chosen.best));
  return chosen;
}

FrozenCacheFacts CacheFacts(const Chosen& computing, const Chosen& reading) {
  const PlanRequest& request = *computing.request;
  const Plan& plan = computing.found().plan;
  FrozenCacheFacts facts{.iterations = request.frozen_inputs.iterations,
                         .computed_seconds = computing.found().seconds,
                         .cached_seconds = reading.found().seconds,
                         .storage_limit_bytes = request.frozen_inputs.storage_limit_bytes};
  const int32_t batch = plan.micro_batches * plan.micro_batch_size;
  for (size_t c = 0; c < request.profile.frozen.size(); ++c) {
    const std::vector<FrozenLayerProfile>& layers = request.profile.frozen[c].layers;
    double seconds = 0;
    for (const FrozenLayerProfile& layer : layers) seconds += FrozenSeconds(layer, batch) / batch;
    const auto rows = static_cast<double>(request.frozen_inputs.rows[c]);
    facts.pass_seconds += rows * seconds / reading.found().plan.rank_count();
    if (!plan.components[c].to_first_stage && !plan.components[c].to_last_stage) continue;
    facts.bytes += rows * layers.back().output_bytes;
    facts.cached_seconds += batch * layers.back().output_bytes / kReadBytesPerSecond;
  }
  return facts;
}

absl::StatusOr<PlanChoice> Describe(const Chosen& chosen, bool compare, const std::string& cache) {
  const PlanRequest& request = *chosen.request;
  Search& search = *chosen.search;
  PlanChoice choice{.plan = chosen.found().plan};
  choice.plan.reason = Reason(request, search, chosen.best);
  if (!cache.empty()) choice.plan.reason += "; " + cache;
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
  choice.candidates = Table(request, search, chosen.best);
  return choice;
}

absl::StatusOr<PlanChoice> Choose(const PlanRequest& request, bool compare) {
  ATOLL_RETURN_IF_ERROR(CheckRequest(request));
  ATOLL_ASSIGN_OR_RETURN(const double limit, LimitOf(request));
  const bool has_frozen = !request.profile.frozen.empty();
  const std::string& wanted = request.pipeline.frozen_cache;
  const bool unknown = wanted == "auto" && request.frozen_inputs.rows.size() != request.profile.frozen.size();
  if (!has_frozen || wanted == "never" || unknown) {
    ATOLL_ASSIGN_OR_RETURN(const Chosen computing, SearchPlans(request, limit));
    return Describe(computing, compare,
                    !has_frozen ? ""
                    : unknown   ? "frozen outputs are computed in every iteration: how many inputs there are is not "
                                  "known"
                                : "frozen outputs are computed in every iteration, as asked for");
  }
  PlanRequest without = request;
  without.profile.frozen.clear();
  without.components.clear();
  const auto read = [&](const Chosen& reading, const std::string& reason) -> absl::StatusOr<PlanChoice> {
    ATOLL_ASSIGN_OR_RETURN(PlanChoice choice, Describe(reading, compare, reason));
    choice.plan.reads_frozen_cache = true;
    return choice;
  };
  absl::StatusOr<Chosen> reading = SearchPlans(without, limit);
  if (!reading.ok()) return reading.status();  // with more to hold and to do, there is no plan either
  if (wanted == "always") return read(*reading, "frozen outputs are computed once and kept, as asked for");
  const absl::StatusOr<Chosen> computing = SearchPlans(request, limit);
  if (!computing.ok()) {
    if (ErrorReason(computing.status()) != kMemoryLimit) return computing.status();
    return read(*reading,
                "frozen outputs are computed once and kept: to compute them in every iteration does not fit "
                "the memory");
  }
  const FrozenCacheDecision decision = DecideFrozenCache(CacheFacts(*computing, *reading));
  return decision.cache ? read(*reading, decision.reason) : Describe(*computing, compare, decision.reason);
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
