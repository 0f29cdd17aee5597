// What a row costs in batches of different sizes: the bound that batching is measured against.
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

// One pass over all batch sizes. Every thread changes its expert with every batch, as a lane does that serves many, and
// no two have the same one at a time. `networks` as BuildNetworks makes them, at least as many experts as threads.
CostCurve MeasureCosts(const std::vector<model::LoadedModel>& networks, int threads);

// The same as lanes answer, one batch at a time each: what a device needs, the way to it and back included. Of the
// networks that the first lane hosts; INTERNAL when one does not answer.
absl::StatusOr<CostCurve> MeasureLaneCosts(const std::vector<std::shared_ptr<router::ExpertLane>>& lanes,
                                           const router::SamplerInfo& info);

// The medians, batch size by batch size.
CostCurve MedianOf(const std::vector<CostCurve>& curves);

}  // namespace atl::bench
