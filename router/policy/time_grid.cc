#include "router/policy/time_grid.h"

namespace atl::router {

std::vector<SolverStep> TimeGrid(Solver solver, int32_t steps) {
  std::vector<SolverStep> grid;
  grid.reserve(steps);
  for (int32_t i = 0; i < steps; ++i) {
    const bool last = i + 1 == steps;
    grid.push_back({.from = 1.0 - static_cast<double>(i) / steps,
                    .to = last ? 0.0 : 1.0 - static_cast<double>(i + 1) / steps,
                    .second_evaluation = solver == Solver::kHeun && !last});
  }
  return grid;
}

}  // namespace atl::router
