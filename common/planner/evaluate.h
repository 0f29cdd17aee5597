// Evaluates one way to run a job on an island: splits layers, makes the schedule, fits memory, fills bubbles,
// simulates. Pure; for the planner's search.
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

// The choices of the search.
struct Shape {
  std::string schedule;  // a generator's name
  int32_t ranks = 1;     // of one pipeline
  int32_t replicas = 1;
  int32_t micro_batches = 1;  // of one replica
  // kAdaptive only: the activations that a rank may hold, as a share of ZBV's.
  double memory_share = 1;
};

// The schedule that the planner searches for (schedule::FindAdaptive) instead of generating it, in a V as ZBV.
inline constexpr schedule::GeneratorInfo kAdaptive{"adaptive", 2};

// A plan without its frozen work. Bound and estimate are expected seconds, for a self-conditioned model on average.
struct Outline {
  Plan plan;
  schedule::SimulationCosts costs;
  schedule::Simulation simulation;  // of plan.schedule
  double optimizer_seconds = 0;
  double bound_seconds = 0;     // no schedule of this split and these micro-batches is shorter
  double frozen_seconds = 0;    // of whole batches, on one rank
  double estimate_seconds = 0;  // lower bound of the iteration with its frozen work
};

class Evaluator {
 public:
  // `request` outlives it. `limit_bytes` per rank; 0: none.
  Evaluator(const PlanRequest& request, double limit_bytes);

  // Returns a lower bound of the time of any plan of the shape.
  double LeastSeconds(const Shape& shape);

  // INVALID_ARGUMENT if the shape does not fit the model; FAILED_PRECONDITION (MEMORY_LIMIT) if it does not fit the
  // memory.
  absl::StatusOr<Outline> Work(const Shape& shape);

  // Returns the plan of an outline with its frozen work placed; `effort` as in FillRequest.
  absl::StatusOr<Plan> Complete(const Outline& outline, int32_t effort);

  // Returns the smallest limit under which Work finds a plan of the shape, to a thousandth.
  absl::StatusOr<double> LeastBytes(const Shape& shape);

 private:
  // Drops recomputation that the limit does not need. The split leaves memory over if a rank holds several stages that
  // the split did not consider together.
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

// Returns the peak of the rank that holds most.
double PeakBytes(const Plan& plan);

}  // namespace atl::planner
