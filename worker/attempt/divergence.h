// Detects training that has diverged: a loss or gradient that is not finite, or losses that exploded. Pure; all ranks
// watch the same numbers and decide alike.
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
  double loss = 0;  // not finite, like the gradient's norm, if the step failed
  double gradient_norm = 0;
  int64_t first_sample = 0;  // its place in the run's order
};

struct Divergence {
  int64_t step = 0;
  int64_t first_bad_step = 0;  // training from this step on is not trusted
  std::string cause;           // LOSS_EXPLODED, LOSS_NOT_FINITE, GRADIENT_NOT_FINITE
  std::string message;
  std::vector<WatchedStep> steps;  // the latest, in order; the last is `step`
};

// Watches one attempt. Not thread-safe.
class DivergenceWatch {
 public:
  // `explosion_factor`: training.explosion_factor; 0: a loss never explodes.
  explicit DivergenceWatch(double explosion_factor) : explosion_factor_(explosion_factor) {}

  // Records that a step was done; steps come in order. Not called after a divergence.
  std::optional<Divergence> OnStep(const WatchedStep& step);
  // Records that step `step`, whose first sample is `first_sample`, ended with `error`. Returns nullopt if the error
  // says nothing about training.
  std::optional<Divergence> OnFailedStep(int64_t step, int64_t first_sample, const absl::Status& error);

 private:
  double Median() const;
  void Remember(const WatchedStep& step);
  Divergence MakeDivergence(int64_t step, std::string cause, std::string message) const;

  const double explosion_factor_;
  std::deque<double> losses_;       // the normal ones
  std::deque<WatchedStep> latest_;  // all of them
  int64_t exploded_ = 0;            // steps in a row until now
};

}  // namespace atl::worker
