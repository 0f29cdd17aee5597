#include "common/schedule/adaptive/search.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "common/schedule/adaptive/blocks.h"
#include "common/schedule/adaptive/compaction.h"
#include "common/schedule/adaptive/improvement.h"
#include "common/schedule/adaptive/optimum.h"

namespace atl::schedule::adaptive {
namespace {

constexpr double kLean = 2.5;                         // slots per rank to the last stage: what counts as a small step
constexpr int32_t kStretchedStarts = 2;               // periods per block, from the shortest that fits
constexpr size_t kTried = 12;                         // blocks that are compacted by every rule
constexpr std::array<size_t, 3> kImproved{12, 4, 1};  // candidates that each round of the local search starts from
constexpr double kHeat = 0.4;                         // of the mean action: what the local search accepts at first

constexpr int32_t kSmall = 100;  // actions that branch and bound can settle

struct Rewrite {
  bool warm_up = false;
  bool cool_down = false;
};

struct Candidate {
  Score score;
  Order order;
};

bool Before(const Candidate& a, const Candidate& b) {
  return Better(a.score, b.score);
}

class Searcher {
 public:
  Searcher(const Problem& problem, const AdaptiveOptions& options)
      : problem_(problem),
        goal_(options.goal),
        options_(options),
        floor_(Floor(problem, goal_)),
        timer_(problem),
        compaction_(problem),
        improvement_(problem) {}

  Found Run(const std::vector<Order>& known);

 private:
  bool AtFloor() const { return best_.score.objective <= floor_ * (1 + 1e-9); }
  void CollectStarts();
  bool AddStart(const Block& block);
  void TryStarts();
  void Consider(size_t start, const Order& order);
  void Try(size_t start, Rewrite rewrite, const CompactionRule& rule);
  void TryAllRules(size_t start);
  void Improve();
  void Settle();

  const Problem& problem_;
  const Goal goal_;
  const AdaptiveOptions options_;
  const double floor_;
  Timer timer_;
  Compaction compaction_;
  Improvement improvement_;
  std::vector<Order> starts_;
  std::set<Order> seen_;
  std::vector<Candidate> candidates_;  // the best of each start
  Candidate best_;
  int32_t compactions_ = 0;
  Order rewritten_;
  Order compacted_;
};

bool Searcher::AddStart(const Block& block) {
  Order order;
  Repeat(block, problem_.micro_batches, order);
  if (!Fits(problem_, order)) return false;
  if (seen_.insert(order).second) starts_.push_back(std::move(order));
  return true;
}

// Collects blocks of the shortest period; those with the smallest steps also with longer periods, for limits below
// theirs. Makes no more than will be compacted: many ranks have thousands of blocks, each an order of megabytes.
void Searcher::CollectStarts() {
  for (Block& block : AllBlocks(problem_.rank_count())) {
    if (starts_.size() >= static_cast<size_t>(std::max(options_.candidates, 1))) return;
    if (AddStart(block) || block.slots.back()[kF1] > kLean * problem_.rank_count()) continue;
    const int32_t longest = block.slots[0][kI0] + kKinds + 1;
    int32_t added = 0;
    for (block.period = kKinds + 1; block.period <= longest && added < kStretchedStarts; ++block.period) {
      if (AddStart(block)) ++added;
    }
  }
}

void Searcher::Try(size_t start, Rewrite rewrite, const CompactionRule& rule) {
  ++compactions_;
  const int32_t most_halves = 2 * problem_.rank_count();
  const Order* order = &starts_[start];
  if (rewrite.warm_up || rewrite.cool_down) {
    rewritten_ = *order;
    if (rewrite.warm_up) RewriteWarmUp(problem_, most_halves, rewritten_);
    if (rewrite.cool_down) RewriteCoolDown(problem_, most_halves, rewritten_);
    if (!Fits(problem_, rewritten_)) return;
    order = &rewritten_;
  }
  if (compaction_.Run(*order, rule, compacted_)) Consider(start, compacted_);
}

void Searcher::Consider(size_t start, const Order& order) {
  Candidate& candidate = candidates_[start];
  const Score score = timer_.Time(order, goal_);
  if (!Better(score, candidate.score)) return;
  candidate = {score, order};
  if (Better(score, best_.score)) best_ = candidate;
}

void Searcher::TryAllRules(size_t start) {
  using Yield = CompactionRule::WeightsYield;
  for (const bool warm_up : {true, false}) {
    for (const bool cool_down : {true, false}) {
      for (const Yield yield : {Yield::kAfterLastF0, Yield::kAfterLastF1, Yield::kAlways}) {
        for (const double tolerance : {0.0, 0.5}) {
          if (AtFloor() || compactions_ >= options_.candidates) return;
          Try(start, {warm_up, cool_down}, {yield, yield == Yield::kAlways, tolerance});
        }
      }
    }
  }
}

// The effort is shared out evenly to rounds: few moves for many candidates first, in the end many moves for the best.
void Searcher::Improve() {
  std::vector<Candidate> from;
  for (Candidate& candidate : candidates_) {
    if (candidate.score.objective < kNever) from.push_back(std::move(candidate));
  }
  double work = 0;
  for (const RankProblem& rank : problem_.ranks) work += rank.work_seconds;
  const double heat = kHeat * work / (kKinds * problem_.rank_count());
  uint64_t seed = 0;
  for (const size_t most : kImproved) {
    std::stable_sort(from.begin(), from.end(), Before);
    if (from.size() > most) from.resize(most);
    const auto runs = static_cast<int32_t>(kImproved.size() * from.size());
    for (Candidate& candidate : from) {
      if (AtFloor()) return;
      candidate.score = improvement_.Run(candidate.order, goal_, options_.moves / runs, floor_, ++seed, heat);
      if (Better(candidate.score, best_.score)) best_ = candidate;
    }
  }
}

// Small problems are searched to the end.
void Searcher::Settle() {
  const int32_t actions = kKinds * problem_.rank_count() * problem_.micro_batches;
  if (goal_ != Goal::kMakespan || actions > kSmall) return;
  Optimum optimum = FindOptimum(problem_, best_.score.objective, options_.nodes);
  if (optimum.order.empty()) return;
  best_.order = std::move(optimum.order);
  best_.score = timer_.Time(best_.order, goal_);
}

void Searcher::TryStarts() {
  for (size_t start = 0; start < starts_.size() && !AtFloor() && compactions_ < options_.candidates; ++start) {
    Try(start, {true, true}, {});
    // A start must not be lost because its rewritten forms do not fit.
    if (candidates_[start].score.objective >= kNever) Try(start, {}, {});
  }
}

Found Searcher::Run(const std::vector<Order>& known) {
  for (const Order& start : known) {
    if (Fits(problem_, start) && seen_.insert(start).second) starts_.push_back(start);
  }
  candidates_.resize(starts_.size());
  for (size_t start = 0; start < starts_.size(); ++start) Consider(start, starts_[start]);
  if (!AtFloor()) CollectStarts();
  candidates_.resize(starts_.size());
  TryStarts();
  std::vector<size_t> by_score(starts_.size());
  for (size_t i = 0; i < by_score.size(); ++i) by_score[i] = i;
  std::stable_sort(by_score.begin(), by_score.end(),
                   [this](size_t a, size_t b) { return Before(candidates_[a], candidates_[b]); });
  for (size_t i = 0; i < std::min(kTried, by_score.size()); ++i) TryAllRules(by_score[i]);
  if (!AtFloor()) Improve();
  if (!AtFloor()) Settle();
  return {best_.order, best_.score, starts_.size(), compactions_};
}

}  // namespace

Found Search(const Problem& problem, const AdaptiveOptions& options, const std::vector<Order>& known) {
  return Searcher(problem, options).Run(known);
}

}  // namespace atl::schedule::adaptive
