// Whether training has gone wrong for good: a loss or gradient that is no number, or losses that exploded. Pure; every
// rank watches the same numbers and comes to the same end.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace atl::worker {

struct WatchedStep {
  int64_t step = 0;
  double loss = 0;  // no number, as the gradient's norm, where the step could not be finished
  double gradient_norm = 0;
  int64_t first_sample = 0;  // its place in the run's order
};

struct Divergence {
  int64_t step = 0;
  int64_t first_bad_step = 0;  // what was trained from this one on is not to be trusted
  std::string cause;           // LOSS_EXPLODED, LOSS_NOT_FINITE, GRADIENT_NOT_FINITE
  std::string message;
  std::vector<WatchedStep> steps;  // the latest, in order; the last is `step`
};

// Of one attempt. Not thread-safe.
class DivergenceWatch {
 public:
  // `explosion_factor`: training.explosion_factor; 0: a loss never explodes.
  explicit DivergenceWatch(double explosion_factor) : explosion_factor_(explosion_factor) {}

  // A step was done, the next one after the last. Not called after a divergence.
  std::optional<Divergence> OnStep(const WatchedStep& step);
  // Step `step`, whose first sample is `first_sample`, ended with `error`. Unset when that says nothing of training.
  std::optional<Divergence> OnFailedStep(int64_t step, int64_t first_sample, const absl::Status& error);

 private:
  double Median() const;
  void Remember(const WatchedStep& step);
  Divergence MakeDivergence(int64_t step, std::string cause, std::string message) const;

  const double explosion_factor_;
  std::deque<double> losses_;       // that are as expected
  std::deque<WatchedStep> latest_;  // all of them
  int64_t exploded_ = 0;            // steps in a row until now
};

}  // namespace atl::worker
