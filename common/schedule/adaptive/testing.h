// The costs and the measure of published tables, and 1F1B over the same ranks, for the tests and the benchmark of the
// adaptive search.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "common/schedule/generators.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {

// Each chunk's activation is one byte that W frees, as in published tables.
inline SimulationCosts EqualStages(int32_t ranks, double forward, double input, double weight) {
  SimulationCosts costs;
  costs.stages.assign(2 * static_cast<size_t>(ranks), {.forward_seconds = forward,
                                                       .input_gradient_seconds = input,
                                                       .weight_gradient_seconds = weight,
                                                       .activation_bytes = 1,
                                                       .weight_gradient_bytes = 1});
  return costs;
}

// Returns the idle time of the worst rank between its own first and last action.
inline double OwnSpanIdleSeconds(const Simulation& simulation) {
  double worst = 0;
  for (const auto& rank : simulation.ranks) {
    double idle = rank.back().end_seconds - rank.front().start_seconds;
    for (const SimulatedAction& action : rank) idle -= action.end_seconds - action.start_seconds;
    worst = std::max(worst, idle);
  }
  return worst;
}

// Returns the makespan of 1F1B over the same ranks, each with the work of its two chunks as one stage.
inline double OneFOneBSeconds(int32_t micro_batches, const SimulationCosts& costs) {
  const auto ranks = static_cast<int32_t>(costs.stages.size() / 2);
  SimulationCosts fused{.transfer_seconds = costs.transfer_seconds};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    StageCost cost = costs.stages[rank];
    const StageCost& other = costs.stages[2 * ranks - 1 - rank];
    const Action down{ActionKind::kBackward, rank, 0};
    const Action up{ActionKind::kBackward, 2 * ranks - 1 - rank, 0};
    cost.backward_seconds = SecondsOf(down, costs) + SecondsOf(up, costs);
    cost.forward_seconds += other.forward_seconds;
    fused.stages.push_back(cost);
  }
  return Simulate(*Generate1F1B(ranks, micro_batches), fused)->makespan_seconds;
}

// A published result of the search, for passes of one second and 2 ranks micro-batches.
struct PublishedRow {
  int32_t ranks = 0;
  int32_t limit = 0;     // activations of one chunk per rank
  int32_t own_span = 0;  // idle passes of the worst rank between its first and last action
  int32_t step = 0;      // idle passes of the whole step
};

// Reads the rows of tests/golden/published_schedules.csv below `source`, the root of the sources; empty if it is
// missing.
inline std::vector<PublishedRow> PublishedRows(const std::string& source) {
  std::ifstream file(source + "/tests/golden/published_schedules.csv");
  std::vector<PublishedRow> rows;
  for (std::string line; std::getline(file, line);) {
    PublishedRow row;
    if (std::sscanf(line.c_str(), "%d,%d,%d,%d", &row.ranks, &row.limit, &row.own_span, &row.step) == 4) {
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace atl::schedule
