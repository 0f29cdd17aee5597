#include "common/schedule/adaptive/improvement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <random>

namespace atl::schedule::adaptive {
namespace {

// Most positions before a block to which its actions may move: into the idle time before the block, and further.
constexpr int32_t kBefore = 4;

}  // namespace

Improvement::Improvement(const Problem& problem) : problem_(problem), timer_(problem) {
  moves_.reserve(problem.ranks.size() * kKinds * problem.micro_batches * 4);
}

// The order timed last, from its end back: what each action waited for.
void Improvement::FindMoves(const Order& order, Goal goal) {
  moves_.clear();
  int32_t rank = 0;
  double worst = -1;
  for (int32_t r = 0; r < problem_.rank_count(); ++r) {
    const double value = timer_.Value(r, goal);
    if (value > worst) {
      worst = value;
      rank = r;
    }
  }
  int32_t position = static_cast<int32_t>(order[rank].size()) - 1;
  int32_t block_end = position;
  while (true) {
    // Back over the block: actions that follow each other without a wait.
    const double start = timer_.Start(rank, position);
    const uint8_t kind = order[rank][position];
    const bool waited = position == 0 || start > timer_.Start(rank, position - 1) +
                                                     problem_.ranks[rank].seconds[order[rank][position - 1]] +
                                                     1e-12 * start;
    if (!waited) {
      --position;
      continue;
    }
    AddMoves(order[rank], rank, position, block_end);
    if (kind >= kLaneKinds) break;
    const Link& producer = problem_.ranks[rank].producer[kind];
    if (producer.rank < 0) break;
    // Micro-batch of this action, and the position of its producer.
    int32_t micro_batch = 0;
    for (int32_t at = 0; at < position; ++at) micro_batch += order[rank][at] == kind ? 1 : 0;
    int32_t at = 0;
    for (int32_t seen = 0;; ++at) {
      if (order[producer.rank][at] == producer.kind && seen++ == micro_batch) break;
    }
    rank = producer.rank;
    position = block_end = at;
  }
}

void Improvement::AddMoves(const std::vector<uint8_t>& kinds, int32_t rank, int32_t first, int32_t last) {
  const auto add = [&](int32_t from, int32_t to) {
    if (from == to || (std::abs(from - to) == 1 && kinds[from] == kinds[to])) return;
    moves_.push_back({rank, from, to});
  };
  for (int32_t at = first; at <= last; ++at) {
    add(at, last);
    add(at, std::min(at + 1, last));
    for (int32_t to = std::max(0, first - kBefore); to <= first; ++to) add(at, to);
  }
}

void Improvement::Apply(std::vector<uint8_t>& kinds, const Move& move) {
  if (move.from < move.to) {
    std::rotate(kinds.begin() + move.from, kinds.begin() + move.from + 1, kinds.begin() + move.to + 1);
  } else {
    std::rotate(kinds.begin() + move.to, kinds.begin() + move.from, kinds.begin() + move.from + 1);
  }
}

bool Improvement::Allowed(const std::vector<uint8_t>& kinds, const Move& move) {
  const RankProblem& rank = problem_.ranks[move.rank];
  double held = 0;
  std::array<int32_t, kKinds> done{};
  const int32_t last = std::max(move.from, move.to);
  for (int32_t at = 0; at <= last; ++at) {
    const uint8_t kind = kinds[at];
    if (held + rank.room_bytes[kind] > rank.limit_bytes) return false;
    if (kind >= kW1 && done[InputGradientOf(kind)] <= done[kind]) return false;
    held += rank.held_bytes[kind];
    ++done[kind];
  }
  return true;
}

Score Improvement::Run(Order& order, Goal goal, int64_t budget, double floor, uint64_t seed, double temperature) {
  std::mt19937_64 random(seed);  // the standard fixes its numbers
  Score current = timer_.Time(order, goal);
  Score best = current;
  best_ = order;
  FindMoves(order, goal);
  const int64_t total = budget;
  while (budget > 0 && !moves_.empty() && best.objective > floor * (1 + 1e-9)) {
    const size_t pick = random() % moves_.size();
    const Move move = moves_[pick];
    moves_[pick] = moves_.back();
    moves_.pop_back();
    std::vector<uint8_t>& kinds = order[move.rank];
    Apply(kinds, move);
    const Move back{move.rank, move.to, move.from};
    if (!Allowed(kinds, move)) {
      Apply(kinds, back);
      continue;
    }
    --budget;
    const double heat = temperature * static_cast<double>(budget) / static_cast<double>(total);
    const double uniform = static_cast<double>((random() >> 11) + 1) * 0x1p-53;
    const double bound = current.objective * (1 + 1e-12) - heat * std::log(uniform);
    const Score score = timer_.Time(order, goal, bound);
    if (score.objective > bound) {
      Apply(kinds, back);
      continue;
    }
    current = score;
    FindMoves(order, goal);
    if (Better(current, best)) {
      best = current;
      best_ = order;
    }
  }
  order = best_;
  return best;
}

}  // namespace atl::schedule::adaptive
