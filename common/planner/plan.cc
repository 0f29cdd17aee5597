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

absl::Status CheckRequest(const PlanRequest& request, int32_t stages_per_rank) {
  if (request.ranks < 1) {
    return FieldError("ranks", "RANKS_OUT_OF_RANGE", fmt::format("expected at least 1, found {}", request.ranks));
  }
  ATOLL_RETURN_IF_ERROR(CheckProfile(request.profile));
  const spec::PipelineSpec& pipeline = request.pipeline;
  if (pipeline.stages < 0 || pipeline.stages > int64_t{request.ranks} * stages_per_rank) {
    return FieldError(
        "pipeline.stages", "STAGES_OUT_OF_RANGE",
        fmt::format("expected 0 ({} per rank) to {} (the ranks of the island, {} stages each), found {}",
                    stages_per_rank, int64_t{request.ranks} * stages_per_rank, stages_per_rank, pipeline.stages));
  }
  if (pipeline.stages % stages_per_rank != 0) {
    return FieldError("pipeline.stages", "STAGES_OUT_OF_RANGE",
                      fmt::format("expected a multiple of the {} stages that {} puts on every rank, found {}",
                                  stages_per_rank, pipeline.schedule, pipeline.stages));
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
  const auto generator = schedule::FindGenerator(request.pipeline.schedule);
  if (!generator.ok()) {
    return FieldError("pipeline.schedule", ErrorReason(generator.status()), std::string(generator.status().message()));
  }
  const int32_t stages_per_rank = generator->stages_per_rank;
  ATOLL_RETURN_IF_ERROR(CheckRequest(request, stages_per_rank));
  Plan plan;
  plan.micro_batches = request.pipeline.micro_batches;
  plan.micro_batch_size = request.batch_size / request.pipeline.micro_batches;
  plan.generator = request.pipeline.schedule;
  plan.precision = request.precision;
  // By default as many ranks as are useful: one without a layer would only be one more that can fail.
  const int32_t useful_ranks = std::max(1, std::min(request.ranks, request.profile.layer_count() / stages_per_rank));
  const int32_t stages = request.pipeline.stages == 0 ? useful_ranks * stages_per_rank : request.pipeline.stages;
  absl::StatusOr<schedule::Schedule> schedule =
      schedule::Generate(plan.generator, stages / stages_per_rank, request.pipeline.micro_batches);
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
