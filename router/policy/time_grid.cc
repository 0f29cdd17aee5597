#include "router/policy/time_grid.h"

namespace atl::router {

std::vector<SolverStep> TimeGrid(Solver solver, int32_t steps, double start) {
  std::vector<double> times;
  times.reserve(steps + 1);
  for (int32_t i = 0; i < steps; ++i) times.push_back(start * (1.0 - static_cast<double>(i) / steps));
  times.push_back(0.0);
  return TimeGrid(solver, times);
}

std::vector<SolverStep> TimeGrid(Solver solver, std::span<const double> times) {
  std::vector<SolverStep> grid;
  grid.reserve(times.size());
  for (size_t i = 0; i + 1 < times.size(); ++i) {
    grid.push_back(
        {.from = times[i], .to = times[i + 1], .second_evaluation = solver == Solver::kHeun && i + 2 < times.size()});
  }
  return grid;
}

}  // namespace atl::router
