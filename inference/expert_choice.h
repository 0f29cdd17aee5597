// Which experts draw one image's next step, from one row of the router network's posterior. Pure.
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
  // Every mode but oracle chooses and weighs by the posterior raised to 1 / temperature: below 1 it is sharper.
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
  // By how much the logarithm of a ratio of probabilities, as the router network gave them, would have to change for
  // other experts to be chosen; infinite where none of its answers would change them.
  double margin = std::numeric_limits<double>::infinity();

  // The same image with other neighbours in its batches, whose answers differ by rounding, may be drawn by others.
  bool close() const;
};

// A smaller margin is a matter of rounding. In float32 the kernels of two batch shapes move an image by about a
// thousandth of it over a whole sample, which leaves room for networks that answer such a change with a larger one.
inline constexpr double kCloseMargin = 1e-3;

// `posterior` has one entry per expert, finite, not all zero; it need not be normalised (ignored by kOracle). Equal
// probabilities go to the lower expert. An expert of weight zero is never chosen: it would cost and change nothing.
ExpertChoice ChooseExperts(const RoutingRule& rule, std::span<const float> posterior);

// Of a normalised row, in nats.
double Entropy(std::span<const float> posterior);

}  // namespace atl::router
