#include "router/policy/solver.h"

#include <algorithm>
#include <cmath>

namespace atl::router {
namespace {

constexpr double kMaxExtrapolation = 2.0;

double LogSignalToNoise(double t) {
  return std::log((1.0 - t) / t);
}

}  // namespace

double Extrapolation(double history_from, const SolverStep& step) {
  if (history_from >= 1.0 || step.to <= 0.0) return 0;
  const double before = LogSignalToNoise(step.from) - LogSignalToNoise(history_from);
  const double now = LogSignalToNoise(step.to) - LogSignalToNoise(step.from);
  return std::min(0.5 * now / before, kMaxExtrapolation);
}

void MultistepAdvance(const SolverStep& step, std::span<const float> velocity, SolverHistory* history,
                      std::span<float> x) {
  const auto t = static_cast<float>(step.from);
  const auto span = static_cast<float>(step.to - step.from);
  const bool first = history->clean.empty();
  const auto beyond = static_cast<float>(first ? 0 : Extrapolation(history->from, step));
  const auto share = static_cast<float>(1.0 - step.to / step.from);
  history->clean.resize(x.size());
  for (size_t p = 0; p < x.size(); ++p) {
    const float clean = x[p] - t * velocity[p];
    const float change = first ? 0.0f : clean - history->clean[p];
    x[p] += span * velocity[p] + share * (beyond * change);
    history->clean[p] = clean;
  }
  history->from = step.from;
}

}  // namespace atl::router
