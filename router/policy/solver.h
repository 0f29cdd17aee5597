// The multistep solver's step: DPM-Solver++(2M) (arXiv 2211.01095) on the linear path, x_t = (1 - t) x_0 + t noise.
// Pure.
//
// With the clean sample D that the velocities point to, the flow from t to s is x_s = (s / t) x_t + (1 - s / t) D.
// Euler takes D at t; this solver goes on along the line through D at t and D at the step before, drawn over the log of
// the ratio of signal and noise, log((1 - t) / t). D is a picture, guided and weighted over experts like the velocity
// it comes from: it means the same whichever experts drew it, so the history holds when an image changes experts.
#pragma once

#include <span>
#include <vector>

#include "router/policy/time_grid.h"

namespace atl::router {

// What an image remembers of the step before.
struct SolverHistory {
  std::vector<float> clean;  // D, shaped as x; empty before the first step
  double from = 1;           // the time at which it was found
};

// How far a step goes beyond D at its start, as a share of D's last change: half the ratio of this step's length to the
// one before, over log((1 - t) / t). 0 (an Euler step) where one of the two is infinite: `history_from` = 1, or a step
// to 0. At most 2: a step much longer than the one before would enlarge the errors of D and not its course.
double Extrapolation(double history_from, const SolverStep& step);

// Moves `x` from step.from to step.to by the velocity at step.from, and remembers D.
void MultistepAdvance(const SolverStep& step, std::span<const float> velocity, SolverHistory* history,
                      std::span<float> x);

}  // namespace atl::router
