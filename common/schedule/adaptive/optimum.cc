#include "common/schedule/adaptive/optimum.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

namespace atl::schedule::adaptive {
namespace {

constexpr double kRounding = 1e-9;
constexpr int32_t kKeptPerState = 24;

// The work done on every rank, four bits each, and the forwards that must wait.
struct StateKey {
  std::array<uint64_t, 3> words{};
  bool operator==(const StateKey&) const = default;
};

struct StateKeyHash {
  size_t operator()(const StateKey& key) const {
    uint64_t mixed = 0;
    for (const uint64_t word : key.words) mixed = (mixed ^ (mixed >> 31) ^ word) * 0x9E3779B97F4A7C15ULL;
    return static_cast<size_t>(mixed ^ (mixed >> 31));
  }
};

class BranchAndBound {
 public:
  BranchAndBound(const Problem& problem, double upper, int64_t node_limit)
      : problem_(problem),
        micro_batches_(problem.micro_batches),
        nodes_left_(node_limit),
        ranks_(problem.ranks.size()),
        end_(problem.ranks.size() * kLaneKinds * micro_batches_, kNever),
        tails_(problem.ranks.size()),
        earliest_(problem.ranks.size()) {
    best_.makespan = upper;
    SetTails();
  }

  Optimum Run() {
    Branch();
    best_.proven = nodes_left_ >= 0;
    return std::move(best_);
  }

 private:
  struct RankState {
    double free_at = 0;
    double held = 0;
    uint8_t waits = 0;  // bit of F0 and of F1: it comes only after other work of the rank
    std::array<int32_t, kKinds> done{};
  };
  struct Kept {
    int32_t next = -1;
    size_t times = 0;
  };

  double& End(int32_t rank, int kind, int32_t micro_batch) {
    return end_[(static_cast<size_t>(rank) * kLaneKinds + kind) * micro_batches_ + micro_batch];
  }

  // The lane kinds in the order in which a micro-batch meets them.
  template <typename Visit>
  void AlongTheWay(Visit visit) const {
    const int32_t count = problem_.rank_count();
    for (int32_t r = 0; r < count; ++r) visit(r, kF0);
    for (int32_t r = count - 1; r >= 0; --r) visit(r, kF1);
    for (int32_t r = 0; r < count; ++r) visit(r, kI1);
    for (int32_t r = count - 1; r >= 0; --r) visit(r, kI0);
  }

  // Sets the least time that follows each action's end.
  void SetTails() {
    std::vector<std::pair<int32_t, int>> way;
    AlongTheWay([&](int32_t rank, int kind) { way.emplace_back(rank, kind); });
    for (size_t i = way.size(); i-- > 0;) {
      const auto [rank, kind] = way[i];
      double tail = kind == kI1   ? problem_.ranks[rank].seconds[kW1]
                    : kind == kI0 ? problem_.ranks[rank].seconds[kW0]
                                  : 0;
      if (const Link& next = problem_.ranks[rank].consumer[kind]; next.rank >= 0) {
        tail = std::max(tail,
                        next.hop_seconds + problem_.ranks[next.rank].seconds[next.kind] + tails_[next.rank][next.kind]);
      }
      tails_[rank][kind] = tail;
    }
  }

  // Returns the time when the inputs of a rank's next work of a kind arrive; kNever while their producer has not run.
  double Ready(int32_t rank, int kind) {
    const int32_t micro_batch = ranks_[rank].done[kind];
    if (kind >= kLaneKinds) return micro_batch < ranks_[rank].done[InputGradientOf(kind)] ? 0 : kNever;
    const Link& producer = problem_.ranks[rank].producer[kind];
    if (producer.rank < 0) return 0;
    if (ranks_[producer.rank].done[producer.kind] <= micro_batch) return kNever;
    return End(producer.rank, producer.kind, micro_batch) + producer.hop_seconds;
  }

  double Start(int32_t rank, int kind) { return std::max(ranks_[rank].free_at, Ready(rank, kind)); }

  bool Runnable(int32_t rank, int kind) {
    const RankState& state = ranks_[rank];
    const RankProblem& numbers = problem_.ranks[rank];
    if (state.done[kind] == micro_batches_ || Ready(rank, kind) >= kNever) return false;
    if (kind <= kF1 && (state.waits & (1 << kind)) != 0) return false;
    // If two weight gradients have the same effect on the rank, only the first is tried.
    if (kind == kW0 && Ready(rank, kW1) == 0 && state.done[kW1] < micro_batches_ &&
        numbers.seconds[kW0] == numbers.seconds[kW1] && numbers.held_bytes[kW0] == numbers.held_bytes[kW1]) {
      return false;
    }
    return state.held + numbers.room_bytes[kind] <= numbers.limit_bytes;
  }

  // Below every makespan that the partial order can still have.
  double Bound() {
    double bound = 0;
    std::array<double, kOptimumRanks> first;
    first.fill(kNever);
    const auto visit = [&](int32_t rank, int kind) {
      const RankState& state = ranks_[rank];
      const int32_t micro_batch = state.done[kind];
      if (micro_batch == micro_batches_) return;
      double start = state.free_at;
      if (const Link& producer = problem_.ranks[rank].producer[kind]; producer.rank >= 0) {
        const int32_t made = ranks_[producer.rank].done[producer.kind];
        const double end = micro_batch < made
                               ? End(producer.rank, producer.kind, micro_batch)
                               : earliest_[producer.rank][producer.kind] +
                                     (micro_batch - made + 1) * problem_.ranks[producer.rank].seconds[producer.kind];
        start = std::max(start, end + producer.hop_seconds);
      }
      earliest_[rank][kind] = start;
      first[rank] = std::min(first[rank], start);
      const double work = (micro_batches_ - micro_batch) * problem_.ranks[rank].seconds[kind];
      bound = std::max(bound, start + work + tails_[rank][kind]);
    };
    AlongTheWay(visit);
    for (int32_t r = 0; r < problem_.rank_count(); ++r) {
      const RankState& state = ranks_[r];
      const auto& seconds = problem_.ranks[r].seconds;
      double left = 0;
      for (int kind = 0; kind < kKinds; ++kind) left += (micro_batches_ - state.done[kind]) * seconds[kind];
      const bool weights = state.done[kW1] < state.done[kI1] || state.done[kW0] < state.done[kI0];
      bound = std::max(bound, (weights || first[r] >= kNever ? state.free_at : first[r]) + left);
    }
    return bound;
  }

  // Whether a state with the same work done was at least as early in every time that still matters.
  bool Dominated() {
    StateKey key;
    times_.clear();
    int bit = 0;
    const auto put = [&](uint64_t value) {
      key.words[bit / 64] |= value << (bit % 64);
      bit += 4;
    };
    for (int32_t r = 0; r < problem_.rank_count(); ++r) {
      const RankState& state = ranks_[r];
      for (const int32_t done : state.done) put(static_cast<uint64_t>(done));
      put(state.waits);
      times_.push_back(state.free_at);
      for (int kind = 0; kind < kLaneKinds; ++kind) {
        const Link& consumer = problem_.ranks[r].consumer[kind];
        if (consumer.rank < 0) continue;
        for (int32_t m = ranks_[consumer.rank].done[consumer.kind]; m < state.done[kind]; ++m) {
          times_.push_back(End(r, kind, m));
        }
      }
    }
    int32_t& head = seen_.try_emplace(key, -1).first->second;
    int32_t count = 0;
    for (int32_t at = head; at >= 0; at = kept_[at].next, ++count) {
      const auto other = pool_.begin() + static_cast<std::ptrdiff_t>(kept_[at].times);
      if (std::equal(times_.begin(), times_.end(), other,
                     [](double a, double b) { return b <= a * (1 + kRounding); })) {
        return true;
      }
    }
    if (count >= kKeptPerState) return false;
    kept_.push_back({head, pool_.size()});
    head = static_cast<int32_t>(kept_.size()) - 1;
    pool_.insert(pool_.end(), times_.begin(), times_.end());
    return false;
  }

  // False when no more nodes are left.
  bool Branch() {
    if (--nodes_left_ < 0) return false;
    int32_t rank = -1;
    int first = 0;
    double first_end = kNever;
    for (int32_t r = 0; r < problem_.rank_count(); ++r) {
      for (int kind = 0; kind < kKinds; ++kind) {
        if (!Runnable(r, kind)) continue;
        const double end = Start(r, kind) + problem_.ranks[r].seconds[kind];
        if (end >= first_end) continue;
        rank = r;
        first = kind;
        first_end = end;
      }
    }
    if (rank < 0) {
      Finish();
      return true;
    }
    if (Bound() >= best_.makespan * (1 - kRounding) || Dominated()) return true;
    for (const int kind : {kI1, kI0, kF1, kF0, kW1, kW0}) {
      // The first to end may take no time at all.
      if (!Runnable(rank, kind) || (kind != first && Start(rank, kind) >= first_end * (1 - kRounding))) continue;
      if (!Execute(rank, kind)) return false;
    }
    if (first > kF1) return true;
    ranks_[rank].waits |= 1 << first;
    const bool more = Branch();
    ranks_[rank].waits &= ~(1 << first);
    return more;
  }

  bool Execute(int32_t rank, int kind) {
    RankState& state = ranks_[rank];
    const RankState before = state;
    state.free_at = Start(rank, kind) + problem_.ranks[rank].seconds[kind];
    state.held += problem_.ranks[rank].held_bytes[kind];
    state.waits = 0;
    if (kind < kLaneKinds) End(rank, kind, state.done[kind]) = state.free_at;
    ++state.done[kind];
    way_.emplace_back(rank, static_cast<uint8_t>(kind));
    const bool more = Branch();
    way_.pop_back();
    state = before;
    return more;
  }

  void Finish() {
    double makespan = 0;
    for (const RankState& state : ranks_) {
      if (std::any_of(state.done.begin(), state.done.end(), [this](int32_t n) { return n < micro_batches_; })) return;
      makespan = std::max(makespan, state.free_at);
    }
    if (makespan >= best_.makespan * (1 - kRounding)) return;
    best_.makespan = makespan;
    best_.order.assign(ranks_.size(), {});
    for (const auto& [rank, kind] : way_) best_.order[rank].push_back(kind);
  }

  const Problem& problem_;
  const int32_t micro_batches_;
  int64_t nodes_left_;
  Optimum best_;
  std::vector<RankState> ranks_;
  std::vector<double> end_;
  std::vector<std::array<double, kLaneKinds>> tails_;
  std::vector<std::array<double, kLaneKinds>> earliest_;
  std::vector<std::pair<int32_t, uint8_t>> way_;
  std::unordered_map<StateKey, int32_t, StateKeyHash> seen_;  // newest entry of kept_
  std::vector<Kept> kept_;
  std::vector<double> pool_;
  std::vector<double> times_;
};

}  // namespace

Optimum FindOptimum(const Problem& problem, double upper, int64_t node_limit) {
  if (problem.rank_count() > kOptimumRanks || problem.micro_batches > kOptimumMicroBatches) return {.makespan = upper};
  return BranchAndBound(problem, upper, node_limit).Run();
}

}  // namespace atl::schedule::adaptive
