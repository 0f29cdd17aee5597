// Which routing mode a model version is drawn with when nobody says: the cheapest of those that are as good as the best
// on held-out samples. Pure.
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

// What is tried: top-1, top-2, a threshold, a nucleus and all experts; fewer where experts are too few to differ.
std::vector<CandidateMode> CandidateModes(int32_t experts);

// One mode on the held-out rows, the same rows for every mode.
struct ModeTrial {
  std::vector<double> errors;  // by row: mean square error of the blended velocity
  double experts = 0;          // chosen per row, on average

  double mean() const;
};

struct ModeChoice {
  size_t mode = 0;  // index of the trial
  std::string reason;
};

// The mode with the least mean error, or a cheaper one whose error on the same rows is larger by at most one standard
// error of the difference: what the rows cannot tell apart is decided by cost, then by error. At least one trial, all
// of the same number of rows, at least one.
ModeChoice ChooseMode(std::span<const ModeTrial> trials);

// Mean square error of the velocity that the chosen experts blend to. `velocities` [experts][pixels], `target`
// [pixels].
double BlendError(const router::ExpertChoice& choice, std::span<const float> velocities, std::span<const float> target);

}  // namespace atl::tasks
