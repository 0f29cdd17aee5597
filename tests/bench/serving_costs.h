// Measures the cost of a row in batches of different sizes: the bound for the gain of batching.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/weights.h"
#include "inference/lane.h"
#include "router/policy/request.h"

namespace atl::bench {

struct CostCurve {
  std::vector<int> rows;  // of a batch: 1 to 32
  // Seconds of one thread per row, by batch size, while as many threads compute as there are lanes.
  std::vector<double> expert;
  std::vector<double> router;

  double best_expert() const;
  double best_router() const;
};

// Runs one pass over all batch sizes. Every thread changes its expert with every batch, as a lane with many experts
// does, and no two threads use the same expert at a time. `networks` are from BuildNetworks, with at least as many
// experts as threads.
CostCurve MeasureCosts(const std::vector<model::LoadedModel>& networks, int threads);

// Measures likewise through the lanes, one batch at a time on each, so that transfers to and from a device count. Uses
// the networks that the first lane hosts; INTERNAL if one does not answer.
absl::StatusOr<CostCurve> MeasureLaneCosts(const std::vector<std::shared_ptr<router::ExpertLane>>& lanes,
                                           const router::SamplerInfo& info);

// Returns the medians, batch size by batch size.
CostCurve MedianOf(const std::vector<CostCurve>& curves);

}  // namespace atl::bench
