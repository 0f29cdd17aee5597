// One tick: advances images of any requests by one solver step each, sharing batches. Blocks in the backends; called by
// the sampling thread.
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
