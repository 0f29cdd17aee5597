#include "common/schedule/adaptive/adaptive.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/adaptive/problem.h"
#include "common/schedule/adaptive/search.h"
#include "common/schedule/generators.h"
#include "common/schedule/shape.h"

namespace atl::schedule {
namespace {

using adaptive::Order;

constexpr std::array<ActionKind, adaptive::kAllKinds> kActionKind{
    ActionKind::kForward,        ActionKind::kForward,        ActionKind::kInputGradient, ActionKind::kInputGradient,
    ActionKind::kWeightGradient, ActionKind::kWeightGradient, ActionKind::kBackward,      ActionKind::kBackward};

constexpr bool OfChunk0(uint8_t kind) {
  return kind == adaptive::kF0 || kind == adaptive::kI0 || kind == adaptive::kW0 || kind == adaptive::kB0;
}

Schedule ToSchedule(const Order& order, int32_t micro_batches) {
  const auto rank_count = static_cast<int32_t>(order.size());
  Schedule schedule = VPlacement(rank_count, micro_batches);
  for (int32_t r = 0; r < rank_count; ++r) {
    std::array<int32_t, adaptive::kKinds> done{};
    for (const uint8_t kind : order[r]) {
      const int32_t stage = OfChunk0(kind) ? r : schedule.stages - 1 - r;
      int32_t micro_batch = 0;
      if (kind < adaptive::kB1) {
        micro_batch = done[kind]++;
      } else {
        const uint8_t weight = kind == adaptive::kB1 ? adaptive::kW1 : adaptive::kW0;
        micro_batch = done[weight]++;
        ++done[adaptive::InputGradientOf(weight)];
      }
      schedule.ranks[r].push_back({kActionKind[kind], stage, micro_batch});
    }
  }
  return schedule;
}

// The other way; a B becomes I and W.
Order ToOrder(const Schedule& schedule) {
  using namespace adaptive;  // NOLINT: the kinds
  Order order(schedule.ranks.size());
  for (size_t r = 0; r < order.size(); ++r) {
    for (const Action& action : schedule.ranks[r]) {
      const bool chunk0 = action.stage == static_cast<int32_t>(r);
      if (action.kind == ActionKind::kForward) order[r].push_back(chunk0 ? kF0 : kF1);
      if (action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kBackward) {
        order[r].push_back(chunk0 ? kI0 : kI1);
      }
      if (action.kind == ActionKind::kWeightGradient || action.kind == ActionKind::kBackward) {
        order[r].push_back(chunk0 ? kW0 : kW1);
      }
    }
  }
  return order;
}

// The fixed schedules of the same placement, so that none of them can be shorter than the result.
absl::StatusOr<std::vector<Order>> FixedSchedules(int32_t rank_count, int32_t micro_batches) {
  std::vector<Order> known;
  for (const std::string_view name : {"zbv", "v-half", "v-min"}) {
    ATOLL_ASSIGN_OR_RETURN(const Schedule schedule, Generate(name, rank_count, micro_batches));
    known.push_back(ToOrder(schedule));
  }
  return known;
}

// An I becomes a B together with its W where the objective stays what it is: one launch less, and activations freed at
// once. Where a B is shorter than its two parts the W may come from further back.
void MergeBackward(const adaptive::Problem& problem, AdaptiveGoal goal, Order& order) {
  adaptive::Timer timer(problem);
  double objective = timer.Time(order, goal).objective;
  for (int32_t r = 0; r < problem.rank_count(); ++r) {
    const auto& seconds = problem.ranks[r].seconds;
    auto& kinds = order[r];
    std::array<int32_t, adaptive::kAllKinds> done{};
    for (size_t at = 0; at < kinds.size(); ++at) {
      const uint8_t kind = kinds[at];
      ++done[kind];
      if (kind != adaptive::kI1 && kind != adaptive::kI0) continue;
      const uint8_t weight = kind == adaptive::kI1 ? adaptive::kW1 : adaptive::kW0;
      const uint8_t both = kind == adaptive::kI1 ? adaptive::kB1 : adaptive::kB0;
      // The next W is this micro-batch's when none is left over from an earlier one.
      if (done[weight] + 1 != done[kind]) continue;
      const auto next = std::find(kinds.begin() + static_cast<std::ptrdiff_t>(at), kinds.end(), weight);
      const std::ptrdiff_t place = next - kinds.begin();
      const bool shorter = seconds[both] < seconds[kind] + seconds[weight];
      if (place != static_cast<std::ptrdiff_t>(at) + 1 && !shorter) continue;
      kinds.erase(next);
      kinds[at] = both;
      const double merged = timer.Time(order, goal).objective;
      if (merged <= objective * (1 + 1e-12)) {
        objective = std::min(objective, merged);
        ++done[weight];
      } else {
        kinds[at] = kind;
        kinds.insert(kinds.begin() + place, weight);
      }
    }
  }
}

// The same work with every backward whole: I takes the time of B, W none.
adaptive::Problem WholeBackwards(adaptive::Problem problem) {
  for (adaptive::RankProblem& rank : problem.ranks) {
    for (const auto& [input, weight, both] : {std::array{adaptive::kI1, adaptive::kW1, adaptive::kB1},
                                              std::array{adaptive::kI0, adaptive::kW0, adaptive::kB0}}) {
      rank.work_seconds += rank.seconds[both] - rank.seconds[input] - rank.seconds[weight];
      rank.seconds[input] = rank.seconds[both];
      rank.seconds[weight] = 0;
      rank.held_bytes[input] += rank.held_bytes[weight];
      rank.held_bytes[weight] = 0;
    }
  }
  return problem;
}

void MergeAll(Order& order) {
  for (auto& kinds : order) {
    std::erase_if(kinds, [](uint8_t kind) { return kind == adaptive::kW1 || kind == adaptive::kW0; });
    std::replace(kinds.begin(), kinds.end(), uint8_t{adaptive::kI1}, uint8_t{adaptive::kB1});
    std::replace(kinds.begin(), kinds.end(), uint8_t{adaptive::kI0}, uint8_t{adaptive::kB0});
  }
}

bool BackwardIsShorter(const adaptive::Problem& problem) {
  return std::any_of(problem.ranks.begin(), problem.ranks.end(), [](const adaptive::RankProblem& rank) {
    const auto& s = rank.seconds;
    return s[adaptive::kB1] + s[adaptive::kB0] <
           (s[adaptive::kI1] + s[adaptive::kW1] + s[adaptive::kI0] + s[adaptive::kW0]) * (1 - 1e-9);
  });
}

// Searches with split backwards, and if splitting costs time also with whole ones; returns the shorter result.
adaptive::Found SearchBoth(const adaptive::Problem& problem, const AdaptiveOptions& options,
                           const std::vector<Order>& known) {
  adaptive::Found split = adaptive::Search(problem, options, known);
  MergeBackward(problem, options.goal, split.order);
  if (!BackwardIsShorter(problem)) return split;
  adaptive::Timer timer(problem);
  split.score = timer.Time(split.order, options.goal);
  adaptive::Found whole = adaptive::Search(WholeBackwards(problem), options, known);
  MergeAll(whole.order);
  whole.score = timer.Time(whole.order, options.goal);
  return adaptive::Better(whole.score, split.score) ? whole : split;
}

absl::Status CheckLimits(const adaptive::Problem& problem, const std::vector<double>& limit_bytes) {
  for (int32_t r = 0; r < problem.rank_count(); ++r) {
    const double least = adaptive::LeastBytes(problem.ranks[r]);
    if (limit_bytes[r] >= least) continue;
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "SCHEDULE_MEMORY_LIMIT",
        fmt::format("adaptive schedule: rank {}: expected a limit of at least {:.0f} bytes, one micro-batch on its "
                    "two stages, found {:.0f}",
                    r, least, limit_bytes[r]));
  }
  return absl::OkStatus();
}

// One micro-batch through all stages and back: refuses what Simulate refuses.
absl::Status CheckCosts(const SimulationCosts& costs, int32_t rank_count) {
  const Order order(rank_count, {adaptive::kF0, adaptive::kF1, adaptive::kB1, adaptive::kB0});
  return Simulate(ToSchedule(order, 1), costs).status();
}

}  // namespace

absl::StatusOr<Schedule> FindAdaptive(int32_t micro_batches, const SimulationCosts& all_costs,
                                      const std::vector<double>& limit_bytes, const AdaptiveOptions& options) {
  const auto rank_count = static_cast<int32_t>(std::min<size_t>(limit_bytes.size(), 1 << 20));
  ATOLL_RETURN_IF_ERROR(CheckCounts(rank_count, 2, micro_batches));
  SimulationCosts costs = all_costs;
  costs.frozen.clear();
  costs.fixed_bytes.clear();
  ATOLL_RETURN_IF_ERROR(CheckCosts(costs, rank_count));
  const adaptive::Problem problem = adaptive::MakeProblem(micro_batches, costs, limit_bytes);
  ATOLL_RETURN_IF_ERROR(CheckLimits(problem, limit_bytes));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Order> known, FixedSchedules(rank_count, micro_batches));
  return ToSchedule(SearchBoth(problem, options, known).order, micro_batches);
}

}  // namespace atl::schedule
