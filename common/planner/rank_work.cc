#include "common/planner/rank_work.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace atl::planner {
namespace {

constexpr double kTicks = 1099511627776.0;  // 2^40 for all layers on the slowest rank: times 2^20 micro-batches fits
constexpr int64_t kMostTries = 4096;

}  // namespace

RankWork::RankWork(const PartitionRequest& request) : request_(request) {
  const size_t layers = request.layers.size();
  const int32_t ranks = 1 + *std::max_element(request.rank_of_stage.begin(), request.rank_of_stage.end());
  const auto slowdown = [&](int32_t rank) {
    return static_cast<size_t>(rank) < request.slowdown.size() ? request.slowdown[rank] : 1.0;
  };
  double total = 0;
  for (const LayerProfile& layer : request.layers) total += layer.forward_seconds + SecondsOf(layer);
  double slowest = 1;
  for (int32_t rank = 0; rank < ranks; ++rank) slowest = std::max(slowest, slowdown(rank));
  total *= slowest;
  for (const double seconds : request.boundary_seconds) total += 2 * seconds;
  // A power of two: what is a multiple of one stays one.
  if (total > 0) scale_ = std::exp2(std::floor(std::log2(kTicks / total)));

  for (int32_t rank = 0; rank < ranks; ++rank) {
    auto& base = base_.emplace_back(layers + 1, 0);
    auto& forward = forward_.emplace_back(layers + 1, 0);
    for (size_t i = 0; i < layers; ++i) {
      const LayerProfile& layer = request.layers[i];
      base[i + 1] = base[i] + std::llround(SecondsOf(layer) * slowdown(rank) * scale_);
      forward[i + 1] = forward[i] + std::llround(layer.forward_seconds * slowdown(rank) * scale_);
    }
  }
  for (const double seconds : request.boundary_seconds) boundary_.push_back(std::llround(seconds * scale_));
  stages_of_rank_.assign(ranks, 0);
  for (const int32_t rank : request.rank_of_stage) ++stages_of_rank_[rank];
}

double RankWork::SecondsOf(const LayerProfile& layer) const {
  const double backward =
      request_.split_backward ? layer.input_gradient_seconds + layer.weight_gradient_seconds : layer.backward_seconds;
  return (1 + request_.self_conditioning_rate) * layer.forward_seconds + backward;
}

double RankWork::InputBytes(int32_t layer) const {
  // The first layer reads the batch, which is there anyway.
  if (layer == 0) return 0;
  return std::min(request_.layers[layer - 1].output_bytes, request_.layers[layer].kept_bytes);
}

std::vector<RankWork::Choice> RankWork::Choices(const RankStages& stages) const {
  const int32_t rank = RankOf(stages);
  int32_t most_first = 0;
  int32_t most_second = 0;
  const auto empty = std::vector<HeldMicroBatches>{};
  for (const HeldMicroBatches& held : request_.held.empty() ? empty : request_.held[rank]) {
    most_first = std::max(most_first, held.until_input_gradient.front());
    most_second = std::max(most_second, held.until_input_gradient.back());
  }
  std::vector<Choice> choices;
  const auto add = [&](LayerRange range, bool second) {
    for (int32_t i = range.first; i < range.end; ++i) {
      const double saved = request_.layers[i].kept_bytes - InputBytes(i);
      choices.push_back({.layer = i,
                         .second = second,
                         .ticks = Sum(forward_, rank, {i, i + 1}),
                         .saved_bytes = saved,
                         .most_saved = saved * (second ? most_second : most_first)});
    }
  };
  add(stages.first, false);
  add(stages.second, true);
  std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return a.most_saved * static_cast<double>(b.ticks) > b.most_saved * static_cast<double>(a.ticks);
  });
  return choices;
}

// The part of a rank's memory that depends on the recomputed layers.
struct RankWork::Load {
  double keep[2] = {0, 0};  // by stage, for every micro-batch held until I
  double transient = 0;     // at the peak of an action
};

// The search for the cheapest set of layers to compute again: depth first, cheapest per byte first, bounded.
struct RankWork::Search {
  struct Held {
    double micro_batches[2] = {0, 0};  // until I, by stage
    double for_weights = 0;            // bytes until W
  };
  std::vector<Choice> choices;
  std::vector<Held> held;
  std::vector<double> saved_from[2];  // by stage: what this choice and all later ones save
  double fixed = 0;                   // weights, buffers and the like, less the limit
  double reduce = 0;                  // while gradients are summed: their stage holds nothing else any more, …
  bool two = false;                   // … but another stage of the rank may
  std::vector<uint8_t> now;
  std::vector<uint8_t> best;
  // Ticks of the rank, then of its larger stage.
  std::pair<int64_t, int64_t> best_ticks{std::numeric_limits<int64_t>::max(), 0};
  int64_t tries = 0;
};

// Returns the bytes by which the rank exceeds its limit; at most 0 fits.
double RankWork::Excess(const Search& search, const Load& load) {
  double most = 0;
  double most_of_one = 0;
  for (const Search::Held& held : search.held) {
    if (search.two) {
      most_of_one = std::max(most_of_one, held.for_weights + std::max(load.keep[0] * held.micro_batches[0],
                                                                      load.keep[1] * held.micro_batches[1]));
    }
    most =
        std::max(most, load.keep[0] * held.micro_batches[0] + load.keep[1] * held.micro_batches[1] + held.for_weights);
  }
  return search.fixed + std::max(most + load.transient, search.reduce > 0 ? most_of_one + search.reduce : 0);
}

// Recomputed activations exist while their gradients are computed.
RankWork::Load RankWork::WithAgain(Load load, const Choice& choice) const {
  load.keep[choice.second] -= choice.saved_bytes;
  load.transient =
      std::max(load.transient, request_.layers[choice.layer].backward_transient_bytes + choice.saved_bytes);
  return load;
}

RankWork::Search RankWork::Begin(const RankStages& stages, Load* load) const {
  Search search{.choices = Choices(stages), .two = stages.second_stage >= 0};
  const int32_t rank = RankOf(stages);
  const bool two = stages.second_stage >= 0;
  // A stage of a rank that holds more stages than are looked at here counts with its own share of the limit.
  const bool share = !two && stages_of_rank_[rank] > 1;
  size_t own = 0;  // the first stage's place among those of the rank
  for (int32_t s = 0; share && s < stages.first_stage; ++s) own += request_.rank_of_stage[s] == rank ? 1 : 0;
  search.fixed = -request_.limit_bytes[rank] / (share ? stages_of_rank_[rank] : 1);
  const bool self_conditioned = request_.self_conditioning_rate > 0;
  double for_weights[2] = {0, 0};
  for (const Choice& choice : search.choices) {
    const LayerProfile& layer = request_.layers[choice.layer];
    search.fixed += request_.fixed_bytes[choice.layer];
    if (!request_.reduce_bytes.empty()) search.reduce += request_.reduce_bytes[choice.layer];
    load->keep[choice.second] += layer.kept_bytes;
    load->transient = std::max({load->transient, layer.forward_transient_bytes, layer.backward_transient_bytes});
    if (self_conditioned) {
      load->transient =
          std::max(load->transient, InputBytes(choice.layer) + layer.kept_bytes + layer.forward_transient_bytes);
    }
    for_weights[choice.second] += layer.weight_gradient_bytes;
  }
  const auto buffers = [&](int32_t stage, LayerRange range) {
    const auto& ranks = request_.rank_of_stage;
    const auto last = static_cast<int32_t>(ranks.size()) - 1;
    // The activation, and in a lane of its own that of C.
    if (stage > 0 && ranks[stage - 1] != rank) {
      search.fixed += (self_conditioned ? 2 : 1) * request_.layers[range.first - 1].output_bytes;
    }
    if (stage < last && ranks[stage + 1] != rank) search.fixed += request_.layers[range.end - 1].output_bytes;
    if (!self_conditioned) return;
    const double feedback = request_.layers.back().output_bytes;
    if (stage == last) search.fixed += request_.micro_batches * feedback;
    if (stage == 0 && ranks[last] != rank) search.fixed += feedback;
  };
  buffers(stages.first_stage, stages.first);
  if (two) buffers(stages.second_stage, stages.second);
  for (const HeldMicroBatches& held : request_.held[rank]) {
    Search::Held& of_both = search.held.emplace_back();
    of_both.micro_batches[0] = held.until_input_gradient[own];
    of_both.for_weights = for_weights[0] * held.until_weight_gradient[own];
    if (!two) continue;
    of_both.micro_batches[1] = held.until_input_gradient[1];
    of_both.for_weights += for_weights[1] * held.until_weight_gradient[1];
  }
  return search;
}

void RankWork::Try(Search* search, size_t at, const StageTicks& ticks, const Load& load) const {
  const std::pair key{ticks.first + ticks.second, std::max(ticks.first, ticks.second)};
  if (key >= search->best_ticks || ++search->tries > kMostTries) return;
  if (Excess(*search, load) <= 0) {
    search->best = search->now;
    search->best_ticks = key;
    return;
  }
  if (at == search->choices.size()) return;
  Load least = load;  // even if all later choices are recomputed
  for (size_t s = 0; s < 2; ++s) least.keep[s] -= search->saved_from[s][at];
  if (Excess(*search, least) > 0) return;
  const Choice& choice = search->choices[at];
  StageTicks more = ticks;
  (choice.second ? more.second : more.first) += choice.ticks;
  search->now[at] = 1;
  Try(search, at + 1, more, WithAgain(load, choice));
  search->now[at] = 0;
  Try(search, at + 1, ticks, load);
}

StageTicks RankWork::Whole(const RankStages& stages) const {
  const int32_t rank = RankOf(stages);
  StageTicks ticks{Sum(base_, rank, stages.first), Sum(base_, rank, stages.second)};
  if (request_.recompute == Recompute::kAlways) {
    ticks.first += Sum(forward_, rank, stages.first);
    ticks.second += Sum(forward_, rank, stages.second);
  }
  return ticks;
}

StageTicks RankWork::Limited(const RankStages& stages, std::vector<uint8_t>* again) const {
  StageTicks ticks = Whole(stages);
  again->assign(static_cast<size_t>(stages.first.end - stages.first.first + stages.second.end - stages.second.first),
                request_.recompute == Recompute::kAlways ? 1 : 0);
  if (request_.limit_bytes.empty()) return ticks;
  Load load;
  Search search = Begin(stages, &load);
  if (request_.recompute == Recompute::kAlways) {
    for (const Choice& choice : search.choices) load = WithAgain(load, choice);
  }
  if (Excess(search, load) <= 0) return ticks;
  if (request_.recompute != Recompute::kAuto) return {};
  for (size_t s = 0; s < 2; ++s) search.saved_from[s].assign(search.choices.size() + 1, 0);
  for (size_t c = search.choices.size(); c-- > 0;) {
    for (size_t s = 0; s < 2; ++s) {
      const double own = search.choices[c].second == (s == 1) ? search.choices[c].saved_bytes : 0;
      search.saved_from[s][c] = search.saved_from[s][c + 1] + own;
    }
  }
  search.now = *again;
  Try(&search, 0, ticks, load);
  if (search.best.empty()) return {};
  for (size_t c = 0; c < search.choices.size(); ++c) {
    if (search.best[c] != 0) (search.choices[c].second ? ticks.second : ticks.first) += search.choices[c].ticks;
  }
  *again = std::move(search.best);
  return ticks;
}

StageTicks RankWork::Ticks(const RankStages& stages, int64_t limit) {
  const StageTicks ticks = Whole(stages);
  if (request_.limit_bytes.empty() || ticks.first + ticks.second > limit) return ticks;
  // A spec has at most 1026 layers.
  uint64_t key = 0;
  for (const int32_t part :
       {stages.first_stage, stages.first.first, stages.first.end, stages.second.first, stages.second.end}) {
    key = key << 12 | static_cast<uint64_t>(part);
  }
  const auto known = limited_.find(key);
  if (known != limited_.end()) return known->second;
  std::vector<uint8_t> again;
  return limited_.emplace(key, Limited(stages, &again)).first->second;
}

std::vector<int32_t> RankWork::Recomputed(const std::vector<StagePlacement>& stages) {
  std::vector<int32_t> recomputed;
  const auto count = static_cast<int32_t>(stages.size());
  const auto range = [&](int32_t s) { return LayerRange{stages[s].first_layer, stages[s].end_layer}; };
  for (int32_t s = 0; s < count; ++s) {
    const int32_t mirror = count - 1 - s;
    const bool pair = mirror != s && stages[mirror].rank == stages[s].rank && stages_of_rank_[stages[s].rank] == 2;
    if (pair && mirror < s) continue;
    RankStages of_rank{.first_stage = s, .first = range(s)};
    if (pair) {
      of_rank.second_stage = mirror;
      of_rank.second = range(mirror);
    }
    std::vector<uint8_t> again;
    Limited(of_rank, &again);
    const std::vector<Choice> choices = Choices(of_rank);
    for (size_t c = 0; c < choices.size(); ++c) {
      if (again[c] != 0) recomputed.push_back(choices[c].layer);
    }
  }
  std::sort(recomputed.begin(), recomputed.end());
  return recomputed;
}

}  // namespace atl::planner
