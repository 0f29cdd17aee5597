// One tick: advances images of any requests by one solver step each, sharing batches. Blocks in the backends; called by
// the sampling thread.
//
// Each image is routed once per step, on x_t at the step's start; Heun's second evaluation and both guidance branches
// use the same experts and weights, so that they differ by what experts answer and not by whom was asked.
//
// Experts of a self-conditioned model are all given the ensemble's own estimate of the clean sample, from the step
// before: x_t - t v at the last point that was evaluated, v the weighted velocity of the image's class alone. Guidance
// has no part in it, for training never showed a guided estimate; nor has the router network.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "router/engine/flight.h"

namespace atl::router {

struct StepItem {
  ActiveRequest* request = nullptr;
  ActiveImage* image = nullptr;
};

struct BatchStats {
  std::string model;
  int32_t expert = 0;
  int64_t rows = 0;
};

struct StepStats {
  int64_t images = 0;
  std::vector<BatchStats> batches;
};

// Every item has a step left. A request whose step failed has `failure` set and its images unchanged or unusable; the
// other requests are unharmed.
StepStats StepImages(std::span<const StepItem> items, size_t max_rows_per_batch);

}  // namespace atl::router
