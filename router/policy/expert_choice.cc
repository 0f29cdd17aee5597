#include "router/policy/expert_choice.h"

#include <algorithm>
#include <cmath>
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

ExpertChoice Weigh(std::vector<int32_t> experts, std::span<const float> posterior, std::string_view reason) {
  std::erase_if(experts, [&](int32_t expert) { return !(posterior[expert] > 0); });
  std::sort(experts.begin(), experts.end());
  double total = 0;
  for (const int32_t expert : experts) total += posterior[expert];
  ExpertChoice choice{.reason = reason};
  for (const int32_t expert : experts) choice.experts.push_back({expert, posterior[expert] / total});
  return choice;
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

// How many of the `ranked` experts it takes to reach `share` of the whole.
size_t NucleusSize(const std::vector<int32_t>& ranked, std::span<const float> posterior, double share) {
  const double total = std::accumulate(posterior.begin(), posterior.end(), 0.0);
  double reached = 0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    reached += posterior[ranked[i]];
    if (reached >= share * total) return i + 1;
  }
  return ranked.size();
}

ExpertChoice ChooseByPosterior(const RoutingRule& rule, std::span<const float> posterior) {
  std::vector<int32_t> ranked = Ranked(posterior);
  if (rule.mode == RoutingMode::kFull) return Weigh(std::move(ranked), posterior, "full");
  if (rule.mode == RoutingMode::kTopK) {
    ranked.resize(std::min(ranked.size(), static_cast<size_t>(std::max(rule.top_k, 1))));
    return Weigh(std::move(ranked), posterior, "top-k");
  }
  if (rule.mode == RoutingMode::kNucleus) {
    ranked.resize(NucleusSize(ranked, posterior, rule.nucleus_p));
    return Weigh(std::move(ranked), posterior, "nucleus");
  }
  std::vector<int32_t> reaching;
  for (const int32_t expert : ranked) {
    if (posterior[expert] >= rule.threshold) reaching.push_back(expert);
  }
  if (!reaching.empty()) return Weigh(std::move(reaching), posterior, "reaches the threshold");
  ranked.resize(1);
  return Weigh(std::move(ranked), posterior, "best, none reaches the threshold");
}

}  // namespace

ExpertChoice ChooseExperts(const RoutingRule& rule, std::span<const float> posterior) {
  if (rule.mode == RoutingMode::kOracle) {
    return {.experts = {{rule.oracle_expert, 1.0}}, .reason = "oracle"};
  }
  if (rule.temperature == 1.0) return ChooseByPosterior(rule, posterior);
  return ChooseByPosterior(rule, Tempered(posterior, rule.temperature));
}

double Entropy(std::span<const float> posterior) {
  double entropy = 0;
  for (const float p : posterior) {
    if (p > 0) entropy -= static_cast<double>(p) * std::log(static_cast<double>(p));
  }
  return entropy;
}

}  // namespace atl::router
