#include "worker/tasks/mode_choice.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

namespace atl::tasks {
namespace {

using router::RoutingMode;

struct Difference {
  double mean = 0;
  double standard_error = 0;
};

// Compares two modes row by row, so that the difficulty of a row, common to both, cancels.
Difference Compare(const ModeTrial& trial, const ModeTrial& best) {
  const auto rows = static_cast<double>(trial.errors.size());
  Difference difference{.mean = trial.mean() - best.mean()};
  double squares = 0;
  for (size_t row = 0; row < trial.errors.size(); ++row) {
    squares += std::pow(trial.errors[row] - best.errors[row] - difference.mean, 2);
  }
  if (rows > 1) difference.standard_error = std::sqrt(squares / (rows - 1) / rows);
  return difference;
}

}  // namespace

std::vector<CandidateMode> CandidateModes(int32_t experts) {
  std::vector<CandidateMode> modes = {{"top-1", {.mode = RoutingMode::kTopK, .top_k = 1}}};
  if (experts > 2) modes.push_back({"top-2", {.mode = RoutingMode::kTopK, .top_k = 2}});
  if (experts > 1) {
    modes.push_back({"threshold 0.1", {.mode = RoutingMode::kThreshold, .threshold = 0.1}});
    modes.push_back({"nucleus 0.9", {.mode = RoutingMode::kNucleus, .nucleus_p = 0.9}});
    modes.push_back({"full", {.mode = RoutingMode::kFull}});
  }
  return modes;
}

double ModeTrial::mean() const {
  return std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
}

ModeChoice ChooseMode(std::span<const ModeTrial> trials) {
  const auto best = std::min_element(trials.begin(), trials.end(),
                                     [](const ModeTrial& a, const ModeTrial& b) { return a.mean() < b.mean(); });
  auto chosen = best;
  for (auto trial = trials.begin(); trial != trials.end(); ++trial) {
    const Difference difference = Compare(*trial, *best);
    const bool as_good = difference.mean <= difference.standard_error;
    const bool cheaper =
        trial->experts < chosen->experts || (trial->experts == chosen->experts && trial->mean() < chosen->mean());
    if (as_good && cheaper) chosen = trial;
  }
  const std::string reason =
      chosen == best ? std::string("the least error")
                     : fmt::format("{:.3g} experts in place of {:.3g}, and no row tells it from the least error",
                                   chosen->experts, best->experts);
  return {.mode = static_cast<size_t>(chosen - trials.begin()), .reason = reason};
}

double BlendError(const router::ExpertChoice& choice, std::span<const float> velocities,
                  std::span<const float> target) {
  double sum = 0;
  for (size_t p = 0; p < target.size(); ++p) {
    double velocity = 0;
    for (const router::ExpertWeight& picked : choice.experts) {
      velocity += picked.weight * velocities[picked.expert * target.size() + p];
    }
    sum += std::pow(velocity - target[p], 2);
  }
  return sum / static_cast<double>(target.size());
}

}  // namespace atl::tasks
