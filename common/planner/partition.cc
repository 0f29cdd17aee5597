#include "common/planner/partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/planner/rank_work.h"

namespace atl::planner {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int32_t kMostLayers = 96;
// Points on the front between the steady state and the ramp that are looked at.
constexpr int kMostPoints = 64;

// The value of a split, over the stages from some point on.
struct Value {
  int64_t way = kNoLimit;  // P
  int64_t worst = 0;       // rank or stage, as Goal says
  bool found() const { return way != kNoLimit; }
  bool operator<(const Value& other) const { return std::pair(way, worst) < std::pair(other.way, other.worst); }
};

struct Goal {
  bool way = true;  // P counts
  enum class Worst : uint8_t { kNone, kRank, kStage } worst = Worst::kNone;
  int64_t rank_limit = kNoLimit;
  int64_t stage_limit = kNoLimit;
};

// Splits by dynamic programming, under one goal at a time.
class Splitter {
 public:
  Splitter(const PartitionRequest& request, RankWork* work)
      : request_(request),
        work_(work),
        layers_(static_cast<int32_t>(request.layers.size())),
        stages_(static_cast<int32_t>(request.rank_of_stage.size())) {}
  virtual ~Splitter() = default;

  virtual Value Solve(const Goal& goal) = 0;
  // The earliest of the splits that the last Solve found best; its goal had no `worst`.
  virtual std::vector<StagePlacement> Stages() const = 0;

 protected:
  // Returns the time of one micro-batch's transfers between stage and stage + 1, in both directions.
  int64_t Crossing(int32_t stage, int32_t end_layer) const {
    if (request_.rank_of_stage[stage] == request_.rank_of_stage[stage + 1]) return 0;
    return 2 * work_->BoundaryTicks(end_layer - 1);
  }

  static Value Join(const Goal& goal, int64_t way, int64_t rank, int64_t stage, const Value& rest) {
    if (!rest.found() || rank > goal.rank_limit || stage > goal.stage_limit) return {};
    const int64_t own = goal.worst == Goal::Worst::kRank ? rank : goal.worst == Goal::Worst::kStage ? stage : 0;
    return {(goal.way ? way : 0) + rest.way, std::max(own, rest.worst)};
  }

  const PartitionRequest& request_;
  RankWork* const work_;
  const int32_t layers_;
  const int32_t stages_;
  Goal goal_;
};

// Stage by stage along the layers.
class LineSplitter : public Splitter {
 public:
  LineSplitter(const PartitionRequest& request, RankWork* work, int32_t stages_per_rank)
      : Splitter(request, work),
        stages_per_rank_(stages_per_rank),
        best_(static_cast<size_t>(stages_ + 1) * (layers_ + 1)) {}

  Value Solve(const Goal& goal) override {
    goal_ = goal;
    std::fill(best_.begin(), best_.end(), Value{});
    At(stages_, layers_) = {.way = 0};
    for (int32_t stage = stages_ - 1; stage >= 0; --stage) {
      for (int32_t first = stage; first <= (stage == 0 ? 0 : layers_ - (stages_ - stage)); ++first) {
        Value& best = At(stage, first);
        for (int32_t end = first + 1; end <= layers_ - (stages_ - stage - 1); ++end) {
          const std::optional<Value> value = Step(stage, first, end);
          if (!value.has_value()) break;
          best = std::min(best, *value);
        }
      }
    }
    return At(0, 0);
  }

  std::vector<StagePlacement> Stages() const override {
    std::vector<StagePlacement> stages;
    int32_t first = 0;
    for (int32_t stage = 0; stage < stages_; ++stage) {
      int32_t end = first + 1;
      for (std::optional<Value> value = Step(stage, first, end); value->way != At(stage, first).way;) {
        value = Step(stage, first, ++end);
      }
      stages.push_back({.rank = request_.rank_of_stage[stage], .first_layer = first, .end_layer = end});
      first = end;
    }
    return stages;
  }

 private:
  Value& At(int32_t stage, int32_t first) { return best_[static_cast<size_t>(stage) * (layers_ + 1) + first]; }
  const Value& At(int32_t stage, int32_t first) const {
    return best_[static_cast<size_t>(stage) * (layers_ + 1) + first];
  }

  // Returns nothing if this stage and all longer ones break a limit.
  std::optional<Value> Step(int32_t stage, int32_t first, int32_t end) const {
    const int64_t limit = std::min(goal_.stage_limit, goal_.rank_limit / stages_per_rank_);
    const StageTicks ticks = work_->Ticks({.first_stage = stage, .first = {first, end}}, limit);
    if (!ticks.fits() || ticks.first > limit) return std::nullopt;
    const int64_t crossing = stage + 1 < stages_ ? Crossing(stage, end) : 0;
    return Join(goal_, ticks.first + crossing, ticks.first * stages_per_rank_, ticks.first, At(stage + 1, end));
  }

  const int32_t stages_per_rank_;
  std::vector<Value> best_;  // [stage][first layer]: of that stage and all later ones
};

// Rank by rank from both ends of the layers inwards: rank i holds the stages i and 2p - 1 - i.
class VSplitter : public Splitter {
 public:
  VSplitter(const PartitionRequest& request, RankWork* work)
      : Splitter(request, work),
        ranks_(stages_ / 2),
        best_(static_cast<size_t>(ranks_) * (layers_ + 1) * (layers_ + 1)) {}

  Value Solve(const Goal& goal) override {
    goal_ = goal;
    std::fill(best_.begin(), best_.end(), Value{});
    for (int32_t i = ranks_ - 1; i >= 0; --i) {
      for (int32_t a = i; a <= (i == 0 ? 0 : layers_); ++a) {
        for (int32_t b = i == 0 ? layers_ : a + 2 * (ranks_ - i); b <= layers_ - i; ++b) {
          Value& best = At(i, a, b);
          ForEachStep(i, a, b, [&](const Value& value, int32_t, int32_t) {
            best = std::min(best, value);
            return false;
          });
        }
      }
    }
    return At(0, 0, layers_);
  }

  std::vector<StagePlacement> Stages() const override {
    std::vector<StagePlacement> stages(stages_);
    int32_t a = 0;
    int32_t b = layers_;
    for (int32_t i = 0; i < ranks_; ++i) {
      int32_t next_a = a;
      int32_t next_b = b;
      ForEachStep(i, a, b, [&](const Value& value, int32_t to_a, int32_t to_b) {
        next_a = to_a;
        next_b = to_b;
        return value.way == At(i, a, b).way;
      });
      stages[i] = {.rank = request_.rank_of_stage[i], .first_layer = a, .end_layer = next_a};
      stages[stages_ - 1 - i] = {.rank = request_.rank_of_stage[i], .first_layer = next_b, .end_layer = b};
      a = next_a;
      b = next_b;
    }
    return stages;
  }

 private:
  Value& At(int32_t i, int32_t a, int32_t b) {
    return best_[(static_cast<size_t>(i) * (layers_ + 1) + a) * (layers_ + 1) + b];
  }
  const Value& At(int32_t i, int32_t a, int32_t b) const {
    return best_[(static_cast<size_t>(i) * (layers_ + 1) + a) * (layers_ + 1) + b];
  }

  // visit(value, end of the first stage, begin of the second) for every choice of the i-th pair over layers [a, b)
  // within the limits, shortest first stage first and then shortest second one, until it returns true.
  template <typename Visit>
  void ForEachStep(int32_t i, int32_t a, int32_t b, Visit visit) const {
    const bool last = i + 1 == ranks_;
    const int32_t inside = 2 * (ranks_ - 1 - i);
    for (int32_t to_a = a + 1; to_a + inside < b; ++to_a) {
      bool any = false;
      // The innermost pair leaves nothing between its stages.
      for (int32_t to_b = last ? to_a : b - 1; to_b >= to_a + inside; --to_b) {
        const StageTicks ticks =
            work_->Ticks({.first_stage = i, .first = {a, to_a}, .second_stage = stages_ - 1 - i, .second = {to_b, b}},
                         goal_.rank_limit);
        const int64_t rank = ticks.first + ticks.second;
        if (!ticks.fits() || rank > goal_.rank_limit) break;
        any = true;
        int64_t way = rank;
        if (!last) way += Crossing(i, to_a) + Crossing(stages_ - 2 - i, to_b);
        const Value value =
            Join(goal_, way, rank, std::max(ticks.first, ticks.second), last ? Value{.way = 0} : At(i + 1, to_a, to_b));
        if (value.found() && visit(value, to_a, to_b)) return;
      }
      if (!any && !last) return;
    }
  }

  const int32_t ranks_;
  std::vector<Value> best_;  // [pair][a][b]: of that pair and all inside it
};

bool IsV(const std::vector<int32_t>& rank_of_stage) {
  const size_t stages = rank_of_stage.size();
  if (stages % 2 != 0) return false;
  for (size_t s = 0; s < stages / 2; ++s) {
    if (rank_of_stage[s] != rank_of_stage[stages - 1 - s]) return false;
    if (std::count(rank_of_stage.begin(), rank_of_stage.end(), rank_of_stage[s]) != 2) return false;
  }
  return true;
}

int32_t StagesPerRank(const std::vector<int32_t>& rank_of_stage) {
  int64_t most = 0;
  for (const int32_t rank : rank_of_stage) {
    most = std::max<int64_t>(most, std::count(rank_of_stage.begin(), rank_of_stage.end(), rank));
  }
  return static_cast<int32_t>(most);
}

// T of the split with the least (M - 1) * T + P, least T among equals; none when nothing fits.
std::optional<int64_t> BestRankLimit(Splitter* splitter, int64_t micro_batches) {
  const Value least = splitter->Solve({.way = false, .worst = Goal::Worst::kRank});
  if (!least.found()) return std::nullopt;
  const int64_t least_t = least.worst;
  int64_t best_t = least_t;
  int64_t best = (micro_batches - 1) * least_t + splitter->Solve({.rank_limit = least_t}).way;
  // The front, from the shortest way on: each next point has a smaller T and a longer way.
  int64_t limit = kNoLimit;
  for (int point = 0; point < kMostPoints && limit >= least_t; ++point) {
    const Value value = splitter->Solve({.worst = Goal::Worst::kRank, .rank_limit = limit});
    if (!value.found()) break;
    const int64_t bound = (micro_batches - 1) * value.worst + value.way;
    if (bound < best || (bound == best && value.worst < best_t)) {
      best = bound;
      best_t = value.worst;
    }
    if ((micro_batches - 1) * least_t + value.way >= best) break;
    limit = value.worst - 1;
  }
  return best_t;
}

absl::Status MemoryError(const PartitionRequest& request) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "MEMORY_LIMIT",
                   fmt::format("{} layers in {} stages: no split fits into {:.0f} bytes per rank",
                               request.layers.size(), request.rank_of_stage.size(),
                               *std::max_element(request.limit_bytes.begin(), request.limit_bytes.end())));
}

absl::StatusOr<Partition> Split(const PartitionRequest& request) {
  RankWork work(request);
  const bool v = IsV(request.rank_of_stage);
  LineSplitter line(request, &work, v ? 1 : StagesPerRank(request.rank_of_stage));
  std::optional<VSplitter> nested;
  if (v) nested.emplace(request, &work);
  Splitter* const splitter = v ? static_cast<Splitter*>(&*nested) : &line;

  const std::optional<int64_t> rank_limit = BestRankLimit(splitter, request.micro_batches);
  if (!rank_limit.has_value()) return MemoryError(request);
  const Value stage = splitter->Solve({.worst = Goal::Worst::kStage, .rank_limit = *rank_limit});
  const Value final = splitter->Solve({.rank_limit = *rank_limit, .stage_limit = stage.worst});

  Partition partition;
  partition.stages = splitter->Stages();
  partition.recomputed_layers = work.Recomputed(partition.stages);
  partition.bound_seconds = work.Seconds((request.micro_batches - 1) * *rank_limit + final.way);
  partition.largest_rank_seconds = work.Seconds(*rank_limit);
  partition.largest_stage_seconds = work.Seconds(stage.worst);
  return partition;
}

// Neighbours as one layer, so that at most kMostLayers remain; `begins` has the first layer of each group, and the end.
PartitionRequest Grouped(const PartitionRequest& request, std::vector<int32_t>* begins) {
  const auto layers = static_cast<int32_t>(request.layers.size());
  PartitionRequest grouped = request;
  grouped.layers.clear();
  grouped.fixed_bytes.clear();
  grouped.boundary_seconds.clear();
  begins->clear();
  for (int32_t g = 0; g < kMostLayers; ++g) {
    const auto first = static_cast<int32_t>(int64_t{layers} * g / kMostLayers);
    const auto end = static_cast<int32_t>(int64_t{layers} * (g + 1) / kMostLayers);
    begins->push_back(first);
    LayerProfile sum;
    double fixed = 0;
    for (int32_t i = first; i < end; ++i) {
      const LayerProfile& layer = request.layers[i];
      sum.forward_seconds += layer.forward_seconds;
      sum.input_gradient_seconds += layer.input_gradient_seconds;
      sum.weight_gradient_seconds += layer.weight_gradient_seconds;
      sum.backward_seconds += layer.backward_seconds;
      sum.kept_bytes += layer.kept_bytes;
      sum.weight_gradient_bytes += layer.weight_gradient_bytes;
      sum.forward_transient_bytes = std::max(sum.forward_transient_bytes, layer.forward_transient_bytes);
      sum.backward_transient_bytes = std::max(sum.backward_transient_bytes, layer.backward_transient_bytes);
      sum.output_bytes = layer.output_bytes;
      if (!request.fixed_bytes.empty()) fixed += request.fixed_bytes[i];
    }
    grouped.layers.push_back(sum);
    if (!request.fixed_bytes.empty()) grouped.fixed_bytes.push_back(fixed);
    if (!request.boundary_seconds.empty()) grouped.boundary_seconds.push_back(request.boundary_seconds[end - 1]);
  }
  begins->push_back(layers);
  return grouped;
}

}  // namespace

std::vector<std::vector<HeldMicroBatches>> HeldByRank(const schedule::Schedule& schedule) {
  using schedule::ActionKind;
  const auto covers = [](const HeldMicroBatches& a, const HeldMicroBatches& b) {
    for (size_t i = 0; i < a.until_input_gradient.size(); ++i) {
      if (a.until_input_gradient[i] < b.until_input_gradient[i]) return false;
      if (a.until_weight_gradient[i] < b.until_weight_gradient[i]) return false;
    }
    return true;
  };
  std::vector<std::vector<HeldMicroBatches>> result;
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    std::vector<int32_t> place(schedule.stages, -1);  // of a stage among those of the rank
    int32_t count = 0;
    for (int32_t stage = 0; stage < schedule.stages; ++stage) {
      if (schedule.rank_of_stage[stage] == rank) place[stage] = count++;
    }
    HeldMicroBatches now{std::vector<int32_t>(count, 0), std::vector<int32_t>(count, 0)};
    std::vector<HeldMicroBatches>& front = result.emplace_back();
    for (const schedule::Action& action : schedule.ranks[rank]) {
      if (!schedule::HasMicroBatch(action.kind)) continue;
      const int32_t at = place[action.stage];
      if (action.kind == ActionKind::kForward) ++now.until_input_gradient[at];
      if (action.kind == ActionKind::kInputGradient || action.kind == ActionKind::kBackward) {
        --now.until_input_gradient[at];
      }
      if (action.kind == ActionKind::kInputGradient) ++now.until_weight_gradient[at];
      if (action.kind == ActionKind::kWeightGradient) --now.until_weight_gradient[at];
      if (std::any_of(front.begin(), front.end(), [&](const auto& other) { return covers(other, now); })) continue;
      std::erase_if(front, [&](const auto& other) { return covers(now, other); });
      front.push_back(now);
    }
  }
  return result;
}

absl::StatusOr<Partition> PartitionLayers(const PartitionRequest& request) {
  const auto layers = static_cast<int32_t>(request.layers.size());
  const auto stages = static_cast<int32_t>(request.rank_of_stage.size());
  if (stages < 1 || stages > layers) {
    return FieldError("pipeline.stages", "STAGES_OUT_OF_RANGE",
                      fmt::format("expected 1 to {} (the layers of the model), found {}", layers, stages));
  }
  if (layers <= kMostLayers || stages > kMostLayers) return Split(request);
  std::vector<int32_t> begins;
  ATOLL_ASSIGN_OR_RETURN(Partition partition, Split(Grouped(request, &begins)));
  for (StagePlacement& stage : partition.stages) {
    stage.first_layer = begins[stage.first_layer];
    stage.end_layer = begins[stage.end_layer];
  }
  std::vector<int32_t> recomputed;
  for (const int32_t group : partition.recomputed_layers) {
    for (int32_t i = begins[group]; i < begins[group + 1]; ++i) recomputed.push_back(i);
  }
  partition.recomputed_layers = std::move(recomputed);
  return partition;
}

}  // namespace atl::planner
