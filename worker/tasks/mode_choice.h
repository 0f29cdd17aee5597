// Chooses the default routing mode of a model version: the cheapest mode that is as good as the best on held-out
// samples. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "inference/expert_choice.h"

namespace atl::tasks {

struct CandidateMode {
  std::string name;
  router::RoutingRule rule;
};

// Returns the modes to try: top-1, top-2, a threshold, a nucleus and all experts; fewer if there are too few experts
// for them to differ.
std::vector<CandidateMode> CandidateModes(int32_t experts);

// The results of one mode on the held-out rows, the same rows for every mode.
struct ModeTrial {
  std::vector<double> errors;  // by row: mean square error of the blended velocity
  double experts = 0;          // chosen per row, on average

  double mean() const;
};

struct ModeChoice {
  size_t mode = 0;  // index of the trial
  std::string reason;
};

// Returns the mode with the least mean error, or a cheaper one whose error on the same rows is larger by at most one
// standard error of the difference. Modes that the rows cannot distinguish are ranked by cost, then by error. Needs at
// least one trial; all have the same number of rows, at least one.
ModeChoice ChooseMode(std::span<const ModeTrial> trials);

// Returns the mean square error of the blended velocity of the chosen experts. `velocities` [experts][pixels], `target`
// [pixels].
double BlendError(const router::ExpertChoice& choice, std::span<const float> velocities, std::span<const float> target);

}  // namespace atl::tasks
