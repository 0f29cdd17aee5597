#include "common/planner/plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/schedule/generators.h"

namespace atl::planner {
namespace {

absl::Status CheckRequest(const PlanRequest& request) {
  if (request.ranks < 1) {
    return FieldError("ranks", "RANKS_OUT_OF_RANGE", fmt::format("expected at least 1, found {}", request.ranks));
  }
  ATOLL_RETURN_IF_ERROR(CheckProfile(request.profile));
  const spec::PipelineSpec& pipeline = request.pipeline;
  if (pipeline.stages < 0 || pipeline.stages > request.ranks) {
    return FieldError("pipeline.stages", "STAGES_OUT_OF_RANGE",
                      fmt::format("expected 0 (one per rank) to {} (the ranks of the island), found {}", request.ranks,
                                  pipeline.stages));
  }
  if (pipeline.micro_batches < 1 || request.batch_size < 1 || request.batch_size % pipeline.micro_batches != 0) {
    return FieldError(
        "pipeline.micro_batches", "BATCH_NOT_DIVISIBLE",
        fmt::format("expected a divisor of the batch of {}, found {}", request.batch_size, pipeline.micro_batches));
  }
  return absl::OkStatus();
}

std::string Reason(const Plan& plan, const schedule::Simulation& simulation, const PlanRequest& request) {
  std::vector<int32_t> layers;
  for (const StagePlacement& stage : plan.stages) layers.push_back(stage.end_layer - stage.first_layer);
  return fmt::format(
      "{} layers on {} of {} ranks as {} layers per stage; {} of {} micro-batches of {}; predicted bubble "
      "{:.1f} %",
      plan.layer_count(), plan.rank_count(), request.ranks, fmt::join(layers, "+"), plan.generator, plan.micro_batches,
      plan.micro_batch_size, 100 * simulation.bubble);
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanRequest& request) {
  ATOLL_RETURN_IF_ERROR(CheckRequest(request));
  Plan plan;
  plan.micro_batches = request.pipeline.micro_batches;
  plan.micro_batch_size = request.batch_size / request.pipeline.micro_batches;
  plan.generator = request.pipeline.schedule;
  plan.precision = request.precision;
  // "One per rank" means as many as are useful: a rank without a layer would only be one more that can fail.
  const int32_t layers = request.profile.layer_count();
  const int32_t stages = request.pipeline.stages == 0 ? std::min(request.ranks, layers) : request.pipeline.stages;
  absl::StatusOr<schedule::Schedule> schedule =
      schedule::Generate(plan.generator, stages, request.pipeline.micro_batches);
  if (!schedule.ok()) {
    return FieldError("pipeline.schedule", ErrorReason(schedule.status()), std::string(schedule.status().message()));
  }
  plan.schedule = *std::move(schedule);
  ATOLL_ASSIGN_OR_RETURN(Partition partition,
                         PartitionLayers({.layers = LayersAt(request.profile, plan.micro_batch_size),
                                          .rank_of_stage = plan.schedule.rank_of_stage,
                                          .micro_batches = plan.micro_batches}));
  plan.stages = std::move(partition.stages);
  const schedule::SimulationCosts costs = CostsOf(plan, request.profile);
  ATOLL_ASSIGN_OR_RETURN(const schedule::Simulation simulation, schedule::Simulate(plan.schedule, costs));
  plan.predicted = {simulation.makespan_seconds, simulation.bubble, simulation.peak_activation_bytes};
  for (size_t rank = 0; rank < costs.fixed_bytes.size(); ++rank)
    plan.predicted.peak_bytes[rank] += costs.fixed_bytes[rank];
  plan.reason = Reason(plan, simulation, request);
  return plan;
}

}  // namespace atl::planner
