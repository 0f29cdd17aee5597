#include "common/schedule/adaptive/compaction.h"

#include <algorithm>
#include <cstddef>

namespace atl::schedule::adaptive {

Compaction::Compaction(const Problem& problem)
    : problem_(problem),
      micro_batches_(problem.micro_batches),
      length_(kKinds * problem.micro_batches),
      positions_(problem.ranks.size() * length_),
      indices_(problem.ranks.size() * length_),
      ready_(problem.ranks.size() * kLaneKinds * micro_batches_),
      state_(problem.ranks.size()) {}

int32_t Compaction::PositionOf(int32_t rank, int kind) const {
  return positions_[(static_cast<size_t>(rank) * kKinds + kind) * micro_batches_ + state_[rank].done[kind]];
}

// Returns the time when the inputs of the next work of a kind arrive; kNever while its producer has not started.
double Compaction::Ready(int32_t rank, int kind) const {
  const RankState& state = state_[rank];
  if (kind >= kLaneKinds) return state.done[kind] < state.done[InputGradientOf(kind)] ? 0 : kNever;
  return ready_[(static_cast<size_t>(rank) * kLaneKinds + kind) * micro_batches_ + state.done[kind]];
}

// A forward taken early is held longer: all that was to come before it must still fit.
bool Compaction::MayRunEarly(int32_t rank, int kind, int32_t position) const {
  const RankProblem& numbers = problem_.ranks[rank];
  const RankState& state = state_[rank];
  if (state.held + numbers.room_bytes[kind] > numbers.limit_bytes) return false;
  const double more = numbers.held_bytes[kind];
  if (more <= 0) return true;
  const auto& kinds = (*in_)[rank];
  const int32_t* const indices = &indices_[static_cast<size_t>(rank) * length_];
  double held = state.held + more;
  for (int32_t at = state.head; at < position; ++at) {
    const uint8_t other = kinds[at];
    if (indices[at] < state.done[other]) continue;
    if (held + numbers.room_bytes[other] > numbers.limit_bytes) return false;
    held += numbers.held_bytes[other];
  }
  return true;
}

bool Compaction::WeightsYield(const RankState& state, const CompactionRule& rule) const {
  if (rule.weights_yield == CompactionRule::WeightsYield::kAlways) return true;
  const uint8_t last = rule.weights_yield == CompactionRule::WeightsYield::kAfterLastF0 ? kF0 : kF1;
  return state.done[last] == micro_batches_;
}

// Returns the kind to run now, or -1: then wake_at is the time of the next check, if known.
int Compaction::Choose(int32_t rank, double now, const CompactionRule& rule, double& wake_at) const {
  const RankState& state = state_[rank];
  const RankProblem& numbers = problem_.ranks[rank];
  const int head = (*in_)[rank][state.head];
  const double head_ready = Ready(rank, head);
  const bool yields = head >= kLaneKinds && WeightsYield(state, rule);
  const bool no_early_forwards = rule.early_in_warm_up_only && state.done[kI0] > 0;
  if (head_ready <= now && !yields) return head;
  double awaited = head_ready;
  if (awaited >= kNever) {
    // The producer has not started, so it cannot end before a whole action from now.
    const Link& producer = numbers.producer[head];
    awaited = std::max(state_[producer.rank].free_at, now) + problem_.ranks[producer.rank].seconds[producer.kind] +
              producer.hop_seconds;
  }
  wake_at = head_ready;
  int best = -1;
  int32_t best_position = length_;
  for (int kind = 0; kind < kKinds; ++kind) {
    if (kind == head || state.done[kind] == micro_batches_) continue;
    if (yields && kind >= kLaneKinds) continue;
    const double ready = Ready(rank, kind);
    if (ready > now) {
      wake_at = std::min(wake_at, ready);
      continue;
    }
    if (no_early_forwards && kind < kI1) continue;
    const int32_t position = PositionOf(rank, kind);
    if (position >= best_position) continue;
    if (!yields && now + numbers.seconds[kind] * (1 - rule.tolerance) > awaited * (1 + 1e-12)) continue;
    if (!MayRunEarly(rank, kind, position)) continue;
    best = kind;
    best_position = position;
  }
  return best < 0 && yields ? head : best;
}

void Compaction::Execute(int32_t rank, int kind, double now, Order& out) {
  RankState& state = state_[rank];
  const RankProblem& numbers = problem_.ranks[rank];
  const int32_t micro_batch = state.done[kind]++;
  out[rank].push_back(static_cast<uint8_t>(kind));
  state.held += numbers.held_bytes[kind];
  state.free_at = now + numbers.seconds[kind];
  state.wake_at = state.free_at;
  const auto& kinds = (*in_)[rank];
  const int32_t* const indices = &indices_[static_cast<size_t>(rank) * length_];
  while (state.head < length_ && indices[state.head] < state.done[kinds[state.head]]) ++state.head;
  if (state.head == length_) state.wake_at = kNever;
  if (kind >= kLaneKinds) return;
  const Link& consumer = numbers.consumer[kind];
  if (consumer.rank < 0) return;
  const double ready = state.free_at + consumer.hop_seconds;
  ready_[(static_cast<size_t>(consumer.rank) * kLaneKinds + consumer.kind) * micro_batches_ + micro_batch] = ready;
  RankState& reader = state_[consumer.rank];
  if (reader.head < length_) reader.wake_at = std::min(reader.wake_at, std::max(ready, reader.free_at));
}

void Compaction::Index(const Order& in) {
  in_ = &in;
  for (size_t r = 0; r < in.size(); ++r) {
    std::array<int32_t, kKinds> count{};
    for (int32_t at = 0; at < length_; ++at) {
      const uint8_t kind = in[r][at];
      positions_[(r * kKinds + kind) * micro_batches_ + count[kind]] = at;
      indices_[r * length_ + at] = count[kind]++;
    }
  }
}

bool Compaction::Run(const Order& in, const CompactionRule& rule, Order& out) {
  Index(in);
  out.resize(in.size());
  for (size_t r = 0; r < in.size(); ++r) {
    state_[r] = RankState{};
    out[r].clear();
  }
  std::fill(ready_.begin(), ready_.end(), kNever);
  std::fill(ready_.begin(), ready_.begin() + micro_batches_, 0.0);  // F0 of rank 0
  while (true) {
    int32_t rank = 0;
    for (int32_t r = 1; r < problem_.rank_count(); ++r) {
      if (state_[r].wake_at < state_[rank].wake_at) rank = r;
    }
    const double now = state_[rank].wake_at;
    if (now >= kNever) break;
    double wake_at = kNever;
    const int kind = Choose(rank, now, rule, wake_at);
    if (kind >= 0) {
      Execute(rank, kind, now, out);
    } else {
      state_[rank].wake_at = wake_at;
    }
  }
  return std::all_of(state_.begin(), state_.end(), [this](const RankState& state) { return state.head == length_; });
}

}  // namespace atl::schedule::adaptive
