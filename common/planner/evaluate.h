// One way to run a job on an island, worked out: layers split, schedule made, memory kept, bubbles filled, simulated.
// Pure; for the planner's search.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/plan.h"
#include "common/schedule/generators.h"
#include "common/schedule/simulator.h"

namespace atl::planner {

// What the search chooses.
struct Shape {
  std::string schedule;  // a generator's name
  int32_t ranks = 1;     // of one pipeline
  int32_t replicas = 1;
  int32_t micro_batches = 1;  // of one replica
  // kAdaptive only: activations that a rank may hold, of what ZBV holds.
  double memory_share = 1;
};

// The schedule that is searched for (schedule::FindAdaptive) instead of generated, in a V as ZBV.
inline constexpr schedule::GeneratorInfo kAdaptive{"adaptive", 2};

// A plan without its frozen work. Bound and estimate are expected seconds: of a self-conditioned model on average.
struct Outline {
  Plan plan;
  schedule::SimulationCosts costs;
  schedule::Simulation simulation;  // of plan.schedule
  double optimizer_seconds = 0;
  double bound_seconds = 0;     // no schedule of this split and these micro-batches is shorter
  double frozen_seconds = 0;    // of whole batches, on one rank
  double estimate_seconds = 0;  // of the iteration with its frozen work: at least this
};

class Evaluator {
 public:
  // `request` outlives it. `limit_bytes` per rank; 0: none.
  Evaluator(const PlanRequest& request, double limit_bytes);

  // No plan of the shape takes less time than this.
  double LeastSeconds(const Shape& shape);

  // INVALID_ARGUMENT: the shape does not fit the model; FAILED_PRECONDITION (MEMORY_LIMIT): it does not fit the memory.
  absl::StatusOr<Outline> Work(const Shape& shape);

  // The plan of an outline, frozen work placed with some effort (see FillRequest).
  absl::StatusOr<Plan> Complete(const Outline& outline, int32_t effort);

  // The smallest limit under which Work would find the shape a plan, to a thousandth.
  absl::StatusOr<double> LeastBytes(const Shape& shape);

 private:
  // Where ranks hold several stages that the split did not see together, it left memory over: drops recomputation that
  // the limit does not need.
  absl::Status KeepWhatFits(Outline* outline);
  absl::StatusOr<Partition> Split(const Plan& plan, double limit_bytes, Recompute recompute);
  double OptimizerSeconds(const Plan& plan) const;
  absl::Status Predict(Outline* outline);
  // Replaces the outline's ZBV by the shortest schedule found within its share of memory.
  absl::Status Adapt(double memory_share, Outline* outline);
  const std::vector<LayerProfile>& Layers(int32_t samples);

  const PlanRequest& request_;
  const double limit_bytes_;
  const Recompute recompute_;
  std::map<int32_t, std::vector<LayerProfile>> layers_;  // by micro-batch size
  // Splits without a memory limit, by ranks, stages per rank, replicas, micro-batches, their size, split backward.
  std::map<std::tuple<int32_t, std::vector<int32_t>, int32_t, int32_t, bool>, Partition> splits_;
};

// Largest of the ranks'.
double PeakBytes(const Plan& plan);

}  // namespace atl::planner
