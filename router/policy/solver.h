// The multistep solver's step: DPM-Solver++(2M) (arXiv 2211.01095) on the linear path, x_t = (1 - t) x_0 + t noise.
// Pure.
//
// With the clean sample D that the velocities point to, the flow from t to s is x_s = (s / t) x_t + (1 - s / t) D.
// Euler uses D at t. This solver extrapolates along the line through D at t and D at the previous step, over the log of
// the ratio of signal and noise, log((1 - t) / t). D is a picture, guided and weighted over experts like its velocity.
// It means the same whichever experts computed it, so the history stays valid when an image changes experts.
#pragma once

#include <span>
#include <vector>

#include "router/policy/time_grid.h"

namespace atl::router {

// The data that an image keeps from the previous step.
struct SolverHistory {
  std::vector<float> clean;  // D, shaped as x; empty before the first step
  double from = 1;           // the time at which it was found
};

// Returns how far a step goes beyond D at its start, as a share of D's last change: half the ratio of this step's
// length to the previous one's, over log((1 - t) / t). 0 (an Euler step) if one of the two is infinite: `history_from`
// = 1, or a step to 0. At most 2: a step much longer than the previous one would enlarge the errors of D and not its
// course.
double Extrapolation(double history_from, const SolverStep& step);

// Moves `x` from step.from to step.to by the velocity at step.from, and stores D in the history.
void MultistepAdvance(const SolverStep& step, std::span<const float> velocity, SolverHistory* history,
                      std::span<float> x);

}  // namespace atl::router
