#include "common/planner/fill.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/dependency_order.h"

namespace atl::planner {
namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::ActionPlace;

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times that differ by rounding alone are the same moment.
constexpr double kMoment = 1e-12;
// Halvings of the interval in which the shortest target lies.
constexpr int kTargets = 12;

// The requirements of a trainable action of the schedule, in the order of its rank.
struct Step {
  Action action;
  double seconds = 0;
  double latest_start = 0;  // with which the iteration takes no longer than without frozen work
  std::optional<ActionPlace> producer;
  double hop_seconds = 0;  // from the producer
};

// One rule for choosing among the pieces that fit.
struct Rule {
  // A piece must make at least this much of the whole batch's speed, unless it is the rest of its layer.
  double least_efficiency = 0;
  double depth_weight = 0;   // prefers layers whose component has much left
  double finish_weight = 0;  // prefers to end a layer
  bool last_rank_first = false;
  // Every rank takes its own samples through all layers, as many as fit its time. No piece waits for another rank's, so
  // a late piece delays no other rank.
  bool own_samples = false;
};

struct Segment {
  int32_t first = 0;
  int32_t end = 0;
  int32_t rank = 0;
  double done = 0;
};

struct LayerState {
  int32_t next = 0;  // sample; those before it have been given to a rank
  int32_t end = 0;   // of the samples
  std::vector<Segment> segments;
};

struct Placed {
  FrozenPiece piece;
  double start = 0;
};

// The result of one run of the greedy rule.
struct Placement {
  std::vector<Placed> pieces;
  std::vector<std::vector<int32_t>> order;  // by rank: -1 the next trainable action, else an index into `pieces`
  double end = 0;
};

struct PieceCandidate {
  int32_t component = -1;
  int32_t layer = 0;
  int32_t samples = 0;
  double seconds = 0;
  double score = -1;
};

class Filler {
 public:
  Filler(const FillRequest& request, const Profile& profile, const schedule::Simulation& base);

  // All frozen work placed such that trainable actions end by `target` (at least the base), and frozen work too where
  // it can.
  Placement Place(double target, const Rule& rule);

  double base_seconds() const { return base_seconds_; }
  double frozen_seconds() const { return frozen_seconds_; }  // of whole batches, on one rank

 private:
  struct RankState {
    size_t next = 0;  // step
    double free_at = 0;
  };

  double Slowdown(int32_t rank) const {
    return static_cast<size_t>(rank) < request_.slowdown.size() ? request_.slowdown[rank] : 1.0;
  }
  double Seconds(int32_t component, int32_t layer, int32_t samples) const {
    return seconds_[component][layer][samples];
  }
  double Arrival(const Segment& segment, int32_t rank, double bytes_per_sample) const {
    if (segment.rank == rank) return segment.done;
    return segment.done + TransferSeconds(profile_, bytes_per_sample * (segment.end - segment.first));
  }
  void FindLatestStarts(const schedule::Simulation& base);
  // The first sample of every rank, and the batch: whole grains, in proportion to the time that ranks have until
  // `target`.
  std::vector<int32_t> Shares(double target) const;
  std::vector<std::vector<LayerState>>& LayersFor(int32_t rank) { return layers_[layers_.size() > 1 ? rank : 0]; }
  // Samples from the first that have arrived at `rank` by now; lowers next_event_ to the next arrival after it.
  int32_t Arrived(const LayerState& source, int32_t rank, double bytes_per_sample);
  int32_t Available(int32_t component, int32_t layer, int32_t rank);
  int32_t LargestFitting(int32_t component, int32_t layer, int32_t rank, int32_t most, double window) const;
  PieceCandidate Choose(int32_t rank, double window, int32_t most, const Rule& rule);
  double Ready(const Step& step) const;
  bool Start(int32_t rank, double target, const Rule& rule);
  void RunStep(int32_t rank);
  void RunPiece(int32_t rank, const PieceCandidate& candidate);

  const FillRequest& request_;
  const Profile& profile_;
  const int32_t ranks_;
  double base_seconds_ = 0;
  double frozen_seconds_ = 0;
  std::vector<std::vector<Step>> steps_;
  std::vector<std::vector<std::vector<double>>> seconds_;  // [component][layer][samples], at slowdown 1
  std::vector<int32_t> grain_;                             // by component: sub-batches are multiples of it

  // State of the current run. Layers by component, for all ranks; or by rank, where each has its own samples.
  std::vector<std::vector<std::vector<LayerState>>> layers_;
  std::vector<double> left_;  // by component: seconds of work not yet given to a rank
  std::vector<RankState> state_;
  std::vector<std::vector<double>> ends_;  // by rank and step, of those that have started
  double now_ = 0;
  double next_event_ = kNever;
  bool overtime_ = false;
  Placement placement_;
};

Filler::Filler(const FillRequest& request, const Profile& profile, const schedule::Simulation& base)
    : request_(request),
      profile_(profile),
      ranks_(request.schedule.rank_count()),
      base_seconds_(base.makespan_seconds) {
  for (const FrozenComponentProfile& component : profile.frozen) {
    auto& of_component = seconds_.emplace_back();
    int32_t grain = request.batch;
    for (const FrozenLayerProfile& layer : component.layers) {
      auto& by_samples = of_component.emplace_back();
      for (int32_t n = 0; n <= request.batch; ++n) by_samples.push_back(n == 0 ? 0 : FrozenSeconds(layer, n));
      frozen_seconds_ += by_samples.back();
      grain = std::min(grain, layer.seconds.begin()->first);
    }
    grain_.push_back(std::max(1, grain));
  }
  FindLatestStarts(base);
}

void Filler::FindLatestStarts(const schedule::Simulation& base) {
  const schedule::ActionIndex index(request_.schedule);
  const schedule::DependencyOrder order = schedule::OrderActions(request_.schedule, index);
  for (const auto& rank : base.ranks) {
    auto& steps = steps_.emplace_back();
    for (const schedule::SimulatedAction& action : rank) {
      steps.push_back({.action = action.action,
                       .seconds = action.end_seconds - action.start_seconds,
                       .latest_start = base.makespan_seconds,
                       .producer = index.Producer(action.action)});
    }
  }
  const auto at = [&](ActionPlace place) -> Step& { return steps_[place.rank][place.position]; };
  for (auto place = order.order.rbegin(); place != order.order.rend(); ++place) {
    Step& step = at(*place);
    const auto& of_rank = steps_[place->rank];
    // Until here latest_start is the latest end that readers allow.
    if (place->position + 1 < static_cast<int32_t>(of_rank.size())) {
      step.latest_start = std::min(step.latest_start, of_rank[place->position + 1].latest_start);
    }
    step.latest_start -= step.seconds;
    if (!step.producer.has_value()) continue;
    Step& producer = at(*step.producer);
    if (step.producer->rank != place->rank) step.hop_seconds = schedule::HopSeconds(step.action, request_.costs);
    producer.latest_start = std::min(producer.latest_start, step.latest_start - step.hop_seconds);
  }
}

std::vector<int32_t> Filler::Shares(double target) const {
  int32_t grain = 1;
  for (const int32_t of_component : grain_) grain = std::max(grain, of_component);
  std::vector<double> time(ranks_, 0);  // of this rank and those before it
  for (int32_t rank = 0; rank < ranks_; ++rank) {
    double own = target;
    for (const Step& step : steps_[rank]) own -= step.seconds;
    time[rank] = (rank > 0 ? time[rank - 1] : 0) + std::max(0.0, own) / Slowdown(rank);
  }
  std::vector<int32_t> shares = {0};
  for (int32_t rank = 0; rank + 1 < ranks_; ++rank) {
    const double part = time.back() > 0 ? time[rank] / time.back() : (rank + 1.0) / ranks_;
    const auto grains = static_cast<int32_t>(std::lround(part * request_.batch / grain));
    shares.push_back(std::min(grains * grain, request_.batch));
  }
  shares.push_back(request_.batch);
  return shares;
}

int32_t Filler::Arrived(const LayerState& source, int32_t rank, double bytes_per_sample) {
  int32_t arrived = 0;
  for (const Segment& segment : source.segments) {
    const double at = Arrival(segment, rank, bytes_per_sample);
    if (at > now_ + kMoment) {
      next_event_ = std::min(next_event_, at);
      break;
    }
    arrived = segment.end;
  }
  return arrived;
}

int32_t Filler::Available(int32_t component, int32_t layer, int32_t rank) {
  const FrozenComponentProfile& profile = profile_.frozen[component];
  const double bytes = profile.layers[layer].input_bytes;
  const auto& layers = LayersFor(rank);
  if (layer > 0) return Arrived(layers[component][layer - 1], rank, bytes);
  int32_t available = layers[component][layer].end;
  for (const int32_t read : profile.reads) available = std::min(available, Arrived(layers[read].back(), rank, bytes));
  return available;
}

// Multiples of the grain, or all of `most`.
int32_t Filler::LargestFitting(int32_t component, int32_t layer, int32_t rank, int32_t most, double window) const {
  const double slowdown = Slowdown(rank);
  const auto fits = [&](int32_t samples) { return slowdown * Seconds(component, layer, samples) <= window + kMoment; };
  if (fits(most)) return most;
  const int32_t grain = grain_[component];
  int32_t low = 0;
  int32_t high = (most - 1) / grain;  // in grains; more samples never take less time
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (fits(middle * grain)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low * grain;
}

PieceCandidate Filler::Choose(int32_t rank, double window, int32_t most, const Rule& rule) {
  PieceCandidate best;
  const auto& layers = LayersFor(rank);
  for (size_t c = 0; c < layers.size(); ++c) {
    const auto component = static_cast<int32_t>(c);
    for (int32_t layer = 0; layer < static_cast<int32_t>(layers[c].size()); ++layer) {
      const LayerState& state = layers[c][layer];
      const int32_t rest = state.end - state.next;
      if (rest == 0) continue;
      const int32_t available = std::min(Available(component, layer, rank) - state.next, most);
      if (available <= 0) continue;
      const int32_t samples = LargestFitting(component, layer, rank, available, window);
      if (samples == 0) continue;
      const double seconds = Seconds(component, layer, samples);
      const double useful = Seconds(component, layer, request_.batch) * samples / request_.batch;
      if (!overtime_ && samples < rest && useful < rule.least_efficiency * seconds) continue;
      const double score = useful * (1 + (samples == rest ? rule.finish_weight : 0)) + rule.depth_weight * left_[c];
      if (score <= best.score) continue;
      best = {component, layer, samples, seconds * Slowdown(rank), score};
    }
  }
  return best;
}

double Filler::Ready(const Step& step) const {
  if (!step.producer.has_value()) return 0;
  const auto& ends = ends_[step.producer->rank];
  const auto position = static_cast<size_t>(step.producer->position);
  return position < ends.size() ? ends[position] + step.hop_seconds : kNever;
}

void Filler::RunStep(int32_t rank) {
  RankState& state = state_[rank];
  state.free_at = now_ + steps_[rank][state.next].seconds;
  ends_[rank].push_back(state.free_at);
  ++state.next;
  placement_.order[rank].push_back(-1);
  placement_.end = std::max(placement_.end, state.free_at);
}

void Filler::RunPiece(int32_t rank, const PieceCandidate& candidate) {
  LayerState& layer = LayersFor(rank)[candidate.component][candidate.layer];
  const FrozenPiece piece{.component = candidate.component,
                          .first_layer = candidate.layer,
                          .end_layer = candidate.layer + 1,
                          .rank = rank,
                          .first_sample = layer.next,
                          .samples = candidate.samples};
  const double end = now_ + candidate.seconds;
  layer.segments.push_back({piece.first_sample, piece.first_sample + piece.samples, rank, end});
  layer.next += piece.samples;
  left_[candidate.component] -= candidate.seconds;
  state_[rank].free_at = end;
  placement_.order[rank].push_back(static_cast<int32_t>(placement_.pieces.size()));
  placement_.pieces.push_back({piece, now_});
  placement_.end = std::max(placement_.end, end);
  // Outputs must be where the next iteration starts.
  const auto& layers = profile_.frozen[candidate.component].layers;
  if (piece.end_layer < static_cast<int32_t>(layers.size())) return;
  for (const int32_t reader : request_.readers[candidate.component]) {
    if (reader == rank) continue;
    placement_.end =
        std::max(placement_.end, end + TransferSeconds(profile_, layers.back().output_bytes * piece.samples));
  }
}

// Starts what the idle rank should do now; false when it waits.
bool Filler::Start(int32_t rank, double target, const Rule& rule) {
  const RankState& state = state_[rank];
  const bool done = state.next == steps_[rank].size();
  double window = target - now_;
  if (!done) {
    const Step& step = steps_[rank][state.next];
    const double ready = Ready(step);
    if (ready <= now_ + kMoment) {
      RunStep(rank);
      return true;
    }
    next_event_ = std::min(next_event_, ready);
    window = step.latest_start + (target - base_seconds_) - now_;
  }
  if (!request_.in_bubbles && now_ + kMoment < base_seconds_) return false;
  int32_t most = request_.batch;
  if (overtime_ && done) {
    // Shared by all ranks.
    window = kNever;
    if (!rule.own_samples) most = (request_.batch + ranks_ - 1) / ranks_;
  }
  const PieceCandidate candidate = Choose(rank, window, most, rule);
  if (candidate.component < 0) return false;
  RunPiece(rank, candidate);
  return true;
}

Placement Filler::Place(double target, const Rule& rule) {
  const std::vector<int32_t> shares = rule.own_samples ? Shares(target) : std::vector<int32_t>{0, request_.batch};
  layers_.assign(shares.size() - 1, {});
  for (size_t share = 0; share < layers_.size(); ++share) {
    for (const FrozenComponentProfile& component : profile_.frozen) {
      layers_[share].emplace_back(component.layers.size(), LayerState{.next = shares[share], .end = shares[share + 1]});
    }
  }
  left_.assign(profile_.frozen.size(), 0);
  for (size_t c = 0; c < profile_.frozen.size(); ++c) {
    for (const auto& by_samples : seconds_[c]) left_[c] += by_samples.back();
  }
  state_.assign(ranks_, {});
  ends_.assign(ranks_, {});
  placement_ = {};
  placement_.order.resize(ranks_);
  now_ = 0;
  overtime_ = false;
  for (;;) {
    next_event_ = !request_.in_bubbles && now_ < base_seconds_ ? base_seconds_ : kNever;
    bool started = false;
    for (int32_t i = 0; i < ranks_; ++i) {
      const int32_t rank = rule.last_rank_first ? ranks_ - 1 - i : i;
      if (state_[rank].free_at <= now_ + kMoment) started = Start(rank, target, rule) || started;
      if (state_[rank].free_at > now_ + kMoment) next_event_ = std::min(next_event_, state_[rank].free_at);
    }
    if (started) continue;
    if (next_event_ < kNever) {
      now_ = next_event_;
      continue;
    }
    bool left = false;
    for (const auto& components : layers_) {
      for (const auto& layers : components) {
        left = left || std::any_of(layers.begin(), layers.end(),
                                   [](const LayerState& layer) { return layer.next < layer.end; });
      }
    }
    // If no further piece fits the target, the rest runs after the flush.
    if (!left || overtime_) return std::move(placement_);
    overtime_ = true;
  }
}

std::vector<Rule> Rules(bool own_samples) {
  if (own_samples) return {{.own_samples = true}, {.depth_weight = 0.5, .own_samples = true}};
  std::vector<Rule> rules;
  for (const double least_efficiency : {0.0, 0.5, 0.7, 0.8, 0.9}) {
    for (const double depth_weight : {0.0, 0.05, 0.5}) {
      for (const double finish_weight : {0.0, 0.5}) {
        for (const bool last_rank_first : {false, true}) {
          rules.push_back({least_efficiency, depth_weight, finish_weight, last_rank_first});
        }
      }
    }
  }
  return rules;
}

// Pieces in the order of component, layer and sample, and the schedule that runs them.
Fill Finish(const FillRequest& request, const Placement& placement) {
  std::vector<int32_t> order(placement.pieces.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto key = [&](int32_t i) {
    const FrozenPiece& piece = placement.pieces[i].piece;
    return std::tuple(piece.component, piece.first_layer, piece.first_sample);
  };
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return key(a) < key(b); });
  std::vector<int32_t> number(order.size());
  Fill fill{.schedule = request.schedule, .iteration_seconds = placement.end};
  for (size_t i = 0; i < order.size(); ++i) {
    number[order[i]] = static_cast<int32_t>(i);
    fill.pieces.push_back(placement.pieces[order[i]].piece);
  }
  fill.schedule.frozen_pieces = static_cast<int32_t>(fill.pieces.size());
  for (int32_t rank = 0; rank < request.schedule.rank_count(); ++rank) {
    std::vector<Action>& actions = fill.schedule.ranks[rank];
    actions.clear();
    auto next = request.schedule.ranks[rank].begin();
    for (const int32_t entry : placement.order[rank]) {
      actions.push_back(entry < 0 ? *next++ : Action{ActionKind::kFrozen, 0, number[entry]});
    }
  }
  return fill;
}

}  // namespace

absl::StatusOr<Fill> FillBubbles(const FillRequest& request, const Profile& profile) {
  if (request.batch < 1 || request.schedule.frozen_pieces != 0 || request.readers.size() != profile.frozen.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "FILL_REQUEST",
                     "fill: expected a batch of at least one sample, a schedule without frozen pieces, and the readers "
                     "of each component");
  }
  ATOLL_ASSIGN_OR_RETURN(const schedule::Simulation base, schedule::SimulateValid(request.schedule, request.costs));
  Filler filler(request, profile, base);
  const double least = filler.base_seconds();
  // All ranks busy with frozen work after the flush is the longest that is of use.
  const double most = least + filler.frozen_seconds();
  const auto shortest = [&](const std::vector<Rule>& rules) {
    std::optional<Placement> best;
    int32_t tries = 0;
    const auto attempt = [&](double target, const Rule& rule) {
      Placement placement = filler.Place(target, rule);
      ++tries;
      const double end = placement.end;
      if (!best.has_value() || end < best->end) best = std::move(placement);
      return end;
    };
    for (size_t i = 0; i < rules.size() && tries < request.effort * kTargets; ++i) {
      // Shorter targets than what the best rule so far has met.
      double low = least;
      double high = best.has_value() ? best->end : most;
      if (attempt(low, rules[i]) <= low) break;
      for (int step = 0; step < kTargets && high - low > 1e-4 * least; ++step) {
        const double target = (low + high) / 2;
        const double end = attempt(target, rules[i]);
        if (end <= target) {
          high = std::min(high, end);
        } else {
          low = target;
        }
      }
    }
    return *std::move(best);
  };
  const Placement best = shortest(Rules(/*own_samples=*/false));
  const Placement own = shortest(Rules(/*own_samples=*/true));
  return Finish(request, own.end <= (1 + profile.time_error) * best.end ? own : best);
}

}  // namespace atl::planner
