// Solver time grids, from t = 1 (noise) to t = 0 (data). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace atl::router {

enum class Solver {
  kEuler,
  kHeun,       // second order, two evaluations per step
  kMultistep,  // second order, one evaluation per step and the history of the previous step (policy/solver.h)
};

// One step of an image: from `from` to `to`, from > to. `second_evaluation`: the velocity is evaluated at `to` as well
// and the two are averaged (Heun).
struct SolverStep {
  double from = 1;
  double to = 0;
  bool second_evaluation = false;
  bool operator==(const SolverStep&) const = default;
};

// Returns equal steps. Heun's last step is an Euler step: the velocity at t = 0 is a limit, on which experts are hardly
// trained and which exact flows cannot evaluate. One first-order step of n leaves the order at two (as in EDM, arXiv
// 2206.00364). `steps` >= 1; `start` in (0, 1] is where a noised image begins.
std::vector<SolverStep> TimeGrid(Solver solver, int32_t steps, double start = 1.0);

// Returns the steps between given times, strictly falling and at least two.
std::vector<SolverStep> TimeGrid(Solver solver, std::span<const double> times);

}  // namespace atl::router
