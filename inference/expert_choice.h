// Decides from one row of the router network's posterior which experts draw one image's next step. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace atl::router {

enum class RoutingMode {
  kTopK,       // the k most probable experts, weights renormalised
  kThreshold,  // every expert whose probability reaches the threshold, renormalised; else the best one
  kFull,       // every expert, weighted by its probability
  kOracle,     // one given expert, whatever the router network says
  kNucleus,    // the fewest of the most probable experts that reach nucleus_p together, renormalised
};

struct RoutingRule {
  RoutingMode mode = RoutingMode::kTopK;
  int32_t top_k = 1;
  double threshold = 0;
  int32_t oracle_expert = 0;
  double nucleus_p = 0;
  // Every mode but kOracle uses the posterior raised to 1 / temperature; a temperature below 1 sharpens it.
  double temperature = 1;

  bool needs_posterior() const { return mode != RoutingMode::kOracle; }
  bool operator==(const RoutingRule&) const = default;
};

struct ExpertWeight {
  int32_t expert = 0;
  double weight = 0;
  bool operator==(const ExpertWeight&) const = default;
};

struct ExpertChoice {
  std::vector<ExpertWeight> experts;  // ascending by expert, weights above 0 and adding up to 1
  std::string_view reason;            // static text, for logs and tests
  // The smallest change of the logarithm of a ratio of the router network's probabilities that changes the chosen
  // experts. Infinite if no answer of the router network changes them.
  double margin = std::numeric_limits<double>::infinity();

  // Returns whether rounding may change the choice: the same image batched with other neighbours may get other experts.
  bool close() const;
};

// Rounding can explain a smaller margin. In float32, over a whole sample, different batch shapes move an image by about
// a thousandth of its size. That leaves room for networks that answer such a change with a larger one.
inline constexpr double kCloseMargin = 1e-3;

// `posterior` has one entry per expert, finite, not all zero; it need not be normalised (kOracle ignores it). Equal
// probabilities go to the lower expert. An expert of weight zero is never chosen, because it would cost time and change
// nothing.
ExpertChoice ChooseExperts(const RoutingRule& rule, std::span<const float> posterior);

// Returns the entropy of a normalised row in nats.
double Entropy(std::span<const float> posterior);

}  // namespace atl::router
