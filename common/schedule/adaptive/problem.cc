#include "common/schedule/adaptive/problem.h"

#include <algorithm>
#include <cmath>

namespace atl::schedule::adaptive {
namespace {

// The lane on which an action's result travels; kAllKinds for W.
constexpr std::array<uint8_t, kAllKinds> kLane{kF0, kF1, kI1, kI0, kAllKinds, kAllKinds, kI1, kI0};

constexpr double kLimitSlack = 1e-9;

// The most seconds of forwards that `rank` can run while it has no gradient yet.
double ForwardsBeforeGradients(const RankProblem& rank, int32_t micro_batches) {
  double most = 0;
  for (int32_t f1 = 0; f1 <= micro_batches; ++f1) {
    const double left = rank.limit_bytes - f1 * (rank.held_bytes[kF0] + rank.held_bytes[kF1]);
    if (left < 0) break;
    const double room = rank.held_bytes[kF0] > 0 ? std::floor(left / rank.held_bytes[kF0]) : micro_batches;
    const double f0 = std::min<double>(micro_batches, f1 + room);
    most = std::max(most, f0 * rank.seconds[kF0] + f1 * rank.seconds[kF1]);
  }
  return most;
}

void SetCosts(const StageCost& cost, int chunk, RankProblem& rank) {
  const uint8_t forward = chunk == 0 ? kF0 : kF1;
  const uint8_t input = chunk == 0 ? kI0 : kI1;
  const uint8_t weight = chunk == 0 ? kW0 : kW1;
  rank.seconds[forward] = cost.forward_seconds;
  rank.seconds[input] = cost.input_gradient_seconds;
  rank.seconds[weight] = cost.weight_gradient_seconds;
  rank.seconds[chunk == 0 ? kB0 : kB1] =
      cost.backward_seconds >= 0 ? cost.backward_seconds : cost.input_gradient_seconds + cost.weight_gradient_seconds;
  rank.held_bytes[forward] = cost.activation_bytes;
  rank.held_bytes[input] = cost.weight_gradient_bytes - cost.activation_bytes;
  rank.held_bytes[weight] = -cost.weight_gradient_bytes;
  rank.room_bytes[forward] = cost.activation_bytes + cost.forward_transient_bytes;
  rank.room_bytes[input] = rank.room_bytes[weight] = cost.backward_transient_bytes;
  rank.work_seconds += cost.forward_seconds + cost.input_gradient_seconds + cost.weight_gradient_seconds;
}

}  // namespace

Problem MakeProblem(int32_t micro_batches, const SimulationCosts& costs, const std::vector<double>& limit_bytes) {
  const auto rank_count = static_cast<int32_t>(limit_bytes.size());
  const int32_t stages = 2 * rank_count;
  const auto rank_of = [&](int32_t stage) { return stage < rank_count ? stage : stages - 1 - stage; };
  const auto forward = [&](int32_t stage) -> uint8_t { return stage < rank_count ? kF0 : kF1; };
  const auto gradient = [&](int32_t stage) -> uint8_t { return stage < rank_count ? kI0 : kI1; };
  const auto hop_seconds = [&](int32_t from, int32_t to) {
    if (rank_of(from) == rank_of(to)) return 0.0;
    return costs.boundary_transfer_seconds.empty() ? costs.transfer_seconds
                                                   : costs.boundary_transfer_seconds[std::min(from, to)];
  };
  Problem problem;
  problem.micro_batches = micro_batches;
  problem.ranks.resize(rank_count);
  const auto link = [&](int32_t from, uint8_t from_kind, int32_t to, uint8_t to_kind) {
    const double hop = hop_seconds(from, to);
    problem.ranks[rank_of(from)].consumer[from_kind] = {rank_of(to), to_kind, hop};
    problem.ranks[rank_of(to)].producer[to_kind] = {rank_of(from), from_kind, hop};
  };
  for (int32_t stage = 0; stage < stages; ++stage) {
    SetCosts(costs.stages[stage], stage < rank_count ? 0 : 1, problem.ranks[rank_of(stage)]);
    if (stage + 1 == stages) {
      link(stage, kF1, stage, kI1);  // the loss
      continue;
    }
    link(stage, forward(stage), stage + 1, forward(stage + 1));
    link(stage + 1, gradient(stage + 1), stage, gradient(stage));
  }
  for (int32_t r = 0; r < rank_count; ++r) {
    RankProblem& rank = problem.ranks[r];
    rank.limit_bytes = limit_bytes[r] * (1 + kLimitSlack);
    const double pair = rank.held_bytes[kF0] + rank.held_bytes[kF1];
    const int32_t most = 2 * micro_batches;
    rank.halves = pair > 0 ? static_cast<int32_t>(std::min<double>(most, 2 * rank.limit_bytes / pair)) : most;
  }
  return problem;
}

double LeastBytes(const RankProblem& rank) {
  double held = 0;
  double peak = 0;
  for (const uint8_t kind : {kF0, kF1, kI1, kW1, kI0, kW0}) {
    peak = std::max(peak, held + rank.room_bytes[kind]);
    held += rank.held_bytes[kind];
  }
  return peak;
}

double Floor(const Problem& problem, Goal goal) {
  if (goal == Goal::kRankIdle) return 0;
  double floor = 0;
  double way = 0;
  const auto pass = [&](const RankProblem& rank, uint8_t kind) {
    const double arrival = way + rank.producer[kind].hop_seconds;
    way = arrival + rank.seconds[kind];
    return arrival;
  };
  std::vector<double> first(problem.ranks.size());
  for (size_t r = 0; r < first.size(); ++r) first[r] = pass(problem.ranks[r], kF0);
  for (size_t r = first.size(); r-- > 0;) pass(problem.ranks[r], kF1);
  for (size_t r = 0; r < first.size(); ++r) {
    const RankProblem& rank = problem.ranks[r];
    const double gradient = pass(rank, kI1);
    const double waits = gradient - first[r] - ForwardsBeforeGradients(rank, problem.micro_batches);
    floor = std::max(floor, first[r] + std::max(0.0, waits) + rank.work_seconds * problem.micro_batches);
  }
  for (size_t r = first.size(); r-- > 0;) {
    pass(problem.ranks[r], kI0);
    floor = std::max(floor, way + problem.ranks[r].seconds[kW0]);
  }
  return floor;
}

Timer::Timer(const Problem& problem)
    : problem_(problem),
      length_(static_cast<size_t>(kKinds) * problem.micro_batches),
      micro_batches_(problem.micro_batches),
      start_(length_ * problem.ranks.size()),
      end_(static_cast<size_t>(kLaneKinds) * micro_batches_ * problem.ranks.size()),
      state_(problem.ranks.size()) {
  runnable_.reserve(problem.ranks.size() * 2);
}

double Timer::Value(int32_t rank, Goal goal) const {
  const RankState& state = state_[rank];
  if (goal == Goal::kMakespan) return state.free_at;
  return state.idle;
}

// Runs `rank` until it ends or waits for another one; false when it passes the bound.
bool Timer::Advance(int32_t r, const std::vector<uint8_t>& kinds) {
  const RankProblem& rank = problem_.ranks[r];
  RankState& state = state_[r];
  state.waits_for = kAllKinds;
  double* const starts = &start_[At(r, 0)];
  const auto length = static_cast<int32_t>(kinds.size());
  for (; state.position < length; ++state.position) {
    const uint8_t kind = kinds[state.position];
    const uint8_t lane = kLane[kind];
    if (lane == kAllKinds) {
      starts[state.position] = state.free_at;
      state.free_at += rank.seconds[kind];
      continue;
    }
    const int32_t micro_batch = state.done[lane];
    double start = state.free_at;
    if (const Link& producer = rank.producer[lane]; producer.rank >= 0) {
      if (state_[producer.rank].done[producer.kind] <= micro_batch) {
        state.waits_for = lane;
        return true;
      }
      start = std::max(start, end_[LaneAt(producer.rank, producer.kind, micro_batch)] + producer.hop_seconds);
    }
    const double wait = start - state.free_at;
    if (state.position > 0) state.idle += wait;
    state.spare -= wait;
    if (state.spare < 0) return false;
    starts[state.position] = start;
    state.free_at = start + rank.seconds[kind];
    ++state.done[lane];
    end_[LaneAt(r, lane, micro_batch)] = state.free_at;
    const Link& consumer = rank.consumer[lane];
    if (consumer.rank >= 0 && consumer.rank != r) {
      RankState& reader = state_[consumer.rank];
      if (reader.waits_for == consumer.kind && reader.done[consumer.kind] == micro_batch) {
        reader.waits_for = kAllKinds;
        runnable_.push_back(consumer.rank);
      }
    }
  }
  return true;
}

Score Timer::Time(const Order& order, Goal goal, double bound) {
  runnable_.clear();
  for (int32_t r = problem_.rank_count() - 1; r >= 0; --r) {
    state_[r] = RankState{};
    // The wait for a rank's first input does not count towards its own span.
    state_[r].spare =
        goal == Goal::kMakespan ? bound - problem_.ranks[r].work_seconds * problem_.micro_batches : kNever;
    runnable_.push_back(r);
  }
  while (!runnable_.empty()) {
    const int32_t r = runnable_.back();
    runnable_.pop_back();
    if (!Advance(r, order[r])) return Score{};
  }
  Score score{0, 0};
  for (int32_t r = 0; r < problem_.rank_count(); ++r) {
    if (state_[r].position < static_cast<int32_t>(order[r].size())) return Score{};
    score.objective = std::max(score.objective, Value(r, goal));
    score.sum += state_[r].free_at;
  }
  return score;
}

bool Fits(const Problem& problem, const Order& order) {
  for (int32_t r = 0; r < problem.rank_count(); ++r) {
    const RankProblem& rank = problem.ranks[r];
    std::array<int32_t, kKinds> done{};
    double held = 0;
    for (const uint8_t kind : order[r]) {
      if (held + rank.room_bytes[kind] > rank.limit_bytes) return false;
      if (kind >= kW1 && done[InputGradientOf(kind)] <= done[kind]) return false;
      held += rank.held_bytes[kind];
      ++done[kind];
    }
  }
  return true;
}

}  // namespace atl::schedule::adaptive
