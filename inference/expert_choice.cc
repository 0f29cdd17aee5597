#include "inference/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace atl::router {
namespace {

// Experts by descending probability; equal ones by ascending number.
std::vector<int32_t> Ranked(std::span<const float> posterior) {
  std::vector<int32_t> experts(posterior.size());
  std::iota(experts.begin(), experts.end(), 0);
  std::stable_sort(experts.begin(), experts.end(), [&](int32_t a, int32_t b) { return posterior[a] > posterior[b]; });
  return experts;
}

ExpertChoice Weigh(std::vector<int32_t> experts, std::span<const float> posterior, std::string_view reason,
                   double margin = std::numeric_limits<double>::infinity()) {
  std::erase_if(experts, [&](int32_t expert) { return !(posterior[expert] > 0); });
  std::sort(experts.begin(), experts.end());
  double total = 0;
  for (const int32_t expert : experts) total += posterior[expert];
  ExpertChoice choice{.reason = reason, .margin = margin};
  for (const int32_t expert : experts) choice.experts.push_back({expert, posterior[expert] / total});
  return choice;
}

// Returns the distance of two probabilities: |log(a / b)|. Infinite if one is zero, because rounding cannot change
// that.
double LogRatio(double a, double b) {
  if (!(a > 0) || !(b > 0)) return std::numeric_limits<double>::infinity();
  return std::abs(std::log(a / b));
}

// Returns the margin between the last of the `chosen` experts and the first one that is not chosen.
double RankMargin(const std::vector<int32_t>& ranked, std::span<const float> posterior, size_t chosen) {
  if (chosen >= ranked.size()) return std::numeric_limits<double>::infinity();
  return LogRatio(posterior[ranked[chosen - 1]], posterior[ranked[chosen]]);
}

double ThresholdMargin(std::span<const float> posterior, double threshold) {
  double margin = std::numeric_limits<double>::infinity();
  for (const float p : posterior) margin = std::min(margin, LogRatio(p, threshold));
  return margin;
}

// p^(1/T), normalised. Taken of p over the best one, so that no row becomes all zeros however low T is.
std::vector<float> Tempered(std::span<const float> posterior, double temperature) {
  const double best = *std::max_element(posterior.begin(), posterior.end());
  std::vector<double> powers;
  powers.reserve(posterior.size());
  for (const float p : posterior) powers.push_back(p > 0 ? std::pow(p / best, 1.0 / temperature) : 0.0);
  const double total = std::accumulate(powers.begin(), powers.end(), 0.0);
  std::vector<float> tempered;
  tempered.reserve(powers.size());
  for (const double power : powers) tempered.push_back(static_cast<float>(power / total));
  return tempered;
}

struct Nucleus {
  size_t size = 0;
  double margin = 0;
};

// How many of the `ranked` experts it takes to reach `share` of the whole. With fewer of them the share is almost
// reached, or with as many only just, where the margin is small.
Nucleus FindNucleus(const std::vector<int32_t>& ranked, std::span<const float> posterior, double share) {
  const double total = std::accumulate(posterior.begin(), posterior.end(), 0.0);
  const double odds = share / (1 - share);
  Nucleus nucleus{.margin = std::numeric_limits<double>::infinity()};
  double reached = 0;
  while (nucleus.size < ranked.size()) {
    reached += posterior[ranked[nucleus.size]];
    ++nucleus.size;
    if (reached < total) nucleus.margin = std::min(nucleus.margin, LogRatio(reached / (total - reached), odds));
    if (reached >= share * total) break;
  }
  nucleus.margin = std::min(nucleus.margin, RankMargin(ranked, posterior, nucleus.size));
  return nucleus;
}

ExpertChoice ChooseByPosterior(const RoutingRule& rule, std::span<const float> posterior) {
  std::vector<int32_t> ranked = Ranked(posterior);
  if (rule.mode == RoutingMode::kFull) return Weigh(std::move(ranked), posterior, "full");
  if (rule.mode == RoutingMode::kTopK) {
    const size_t chosen = std::min(ranked.size(), static_cast<size_t>(std::max(rule.top_k, 1)));
    const double margin = RankMargin(ranked, posterior, chosen);
    ranked.resize(chosen);
    return Weigh(std::move(ranked), posterior, "top-k", margin);
  }
  if (rule.mode == RoutingMode::kNucleus) {
    const Nucleus nucleus = FindNucleus(ranked, posterior, rule.nucleus_p);
    ranked.resize(nucleus.size);
    return Weigh(std::move(ranked), posterior, "nucleus", nucleus.margin);
  }
  double margin = ThresholdMargin(posterior, rule.threshold);
  std::vector<int32_t> reaching;
  for (const int32_t expert : ranked) {
    if (posterior[expert] >= rule.threshold) reaching.push_back(expert);
  }
  if (!reaching.empty()) return Weigh(std::move(reaching), posterior, "reaches the threshold", margin);
  margin = std::min(margin, RankMargin(ranked, posterior, 1));
  ranked.resize(1);
  return Weigh(std::move(ranked), posterior, "best, none reaches the threshold", margin);
}

}  // namespace

ExpertChoice ChooseExperts(const RoutingRule& rule, std::span<const float> posterior) {
  if (rule.mode == RoutingMode::kOracle) {
    return {.experts = {{rule.oracle_expert, 1.0}}, .reason = "oracle"};
  }
  if (rule.temperature == 1.0) return ChooseByPosterior(rule, posterior);
  ExpertChoice choice = ChooseByPosterior(rule, Tempered(posterior, rule.temperature));
  choice.margin *= rule.temperature;
  return choice;
}

bool ExpertChoice::close() const {
  return margin < kCloseMargin;
}

double Entropy(std::span<const float> posterior) {
  double entropy = 0;
  for (const float p : posterior) {
    if (p > 0) entropy -= static_cast<double>(p) * std::log(static_cast<double>(p));
  }
  return entropy;
}

}  // namespace atl::router
