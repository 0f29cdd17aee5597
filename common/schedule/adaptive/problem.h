// The data of the adaptive search: the V placement of 2p stages on p ranks as dense numbers, an order of the work on
// every rank, and its timing. Pure; for the files of this folder.
//
// Rank r holds chunk 0 (stage r) and chunk 1 (stage 2p - 1 - r). Micro-batches are alike, so each kind of work runs in
// their order, and an order is just a sequence of kinds: the n-th F0 of a rank is the forward of micro-batch n.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/schedule/adaptive/adaptive.h"
#include "common/schedule/simulator.h"

namespace atl::schedule::adaptive {

// The letter of schedule::ActionKind and the chunk. B1 and B0 stand for I and W at once; the search itself uses
// neither.
enum Kind : uint8_t { kF0, kF1, kI1, kI0, kW1, kW0, kB1, kB0 };
inline constexpr int kKinds = 6;      // F0 to W0
inline constexpr int kLaneKinds = 4;  // F0 to I0: results that other stages may wait for
inline constexpr int kAllKinds = 8;

inline constexpr double kNever = 1e300;

constexpr uint8_t InputGradientOf(uint8_t weight_gradient) {
  return weight_gradient - 2;
}

// The work that reads a result, or that makes it, and the result's transfer time.
struct Link {
  int32_t rank = -1;  // -1: none
  uint8_t kind = 0;
  double hop_seconds = 0;
};

struct RankProblem {
  std::array<double, kAllKinds> seconds{};
  std::array<double, kKinds> held_bytes{};  // change of the held activations by the action; negative if it frees
  std::array<double, kKinds> room_bytes{};  // bytes needed during the action, on top of the activations held before it
  std::array<Link, kLaneKinds> producer;
  std::array<Link, kLaneKinds> consumer;
  double limit_bytes = 0;   // with a margin for rounding
  double work_seconds = 0;  // of one micro-batch, split
  int32_t halves = 0;       // activations of one chunk that fit the limit, using the chunks' mean
};

struct Problem {
  int32_t micro_batches = 0;
  std::vector<RankProblem> ranks;

  int32_t rank_count() const { return static_cast<int32_t>(ranks.size()); }
};

// Makes the problem from `costs` of 2p stages and one limit per rank.
Problem MakeProblem(int32_t micro_batches, const SimulationCosts& costs, const std::vector<double>& limit_bytes);

// order[r]: the kinds in the order in which rank r runs them.
using Order = std::vector<std::vector<uint8_t>>;

using Goal = AdaptiveGoal;

// Between equal objectives, the smaller sum of the ranks' ends is better.
struct Score {
  double objective = kNever;
  double sum = kNever;
};

inline bool Better(const Score& a, const Score& b) {
  const double margin = 1e-9 * b.objective;
  if (a.objective < b.objective - margin) return true;
  return a.objective <= b.objective + margin && a.sum < b.sum - 1e-9 * b.sum;
}

// Returns the least limit of a rank: one micro-batch at a time.
double LeastBytes(const RankProblem& rank);

// Returns a lower bound for orders without B1 and B0: each rank waits for its first input, and again if the limit
// allows too few forwards until the first gradient is back; micro-batch 0 must go the whole way.
double Floor(const Problem& problem, Goal goal);

// Times orders. Allocates only in its constructor.
class Timer {
 public:
  explicit Timer(const Problem& problem);

  // Times an order in which every action starts as soon as it can. The objective is kNever if the order deadlocks, or
  // as soon as it is known to be above `bound` (for orders without B1 and B0).
  Score Time(const Order& order, Goal goal, double bound = kNever);

  // Start of an action of the last timed order, which must not have been cut short.
  double Start(int32_t rank, int32_t position) const { return start_[At(rank, position)]; }
  double Value(int32_t rank, Goal goal) const;

 private:
  struct RankState {
    double free_at = 0;
    double idle = 0;   // since its first action
    double spare = 0;  // time that the rank may still wait within the bound
    int32_t position = 0;
    uint8_t waits_for = kAllKinds;
    std::array<int32_t, kLaneKinds> done{};
  };

  size_t At(int32_t rank, int32_t position) const { return static_cast<size_t>(rank) * length_ + position; }
  size_t LaneAt(int32_t rank, uint8_t kind, int32_t micro_batch) const {
    return (static_cast<size_t>(rank) * kLaneKinds + kind) * micro_batches_ + micro_batch;
  }
  bool Advance(int32_t rank, const std::vector<uint8_t>& kinds);

  const Problem& problem_;
  size_t length_;
  size_t micro_batches_;
  std::vector<double> start_;
  std::vector<double> end_;  // by LaneAt
  std::vector<RankState> state_;
  std::vector<int32_t> runnable_;
};

// Returns whether no rank ever holds more than its limit, and no W comes before its I.
bool Fits(const Problem& problem, const Order& order);

}  // namespace atl::schedule::adaptive
