#include "worker/trainer/plan_check.h"

#include <string>
#include <vector>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/planner/frozen_flow.h"
#include "common/schedule/accumulation.h"
#include "common/schedule/self_conditioning.h"
#include "fmt/format.h"

namespace atl::trainer {
namespace {

using schedule::Action;
using schedule::ActionKind;

absl::Status Invalid(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "PLAN_INVALID", "plan: " + message);
}

absl::Status CheckCounts(const planner::Plan& plan, int64_t layers, int32_t rank, bool has_transport) {
  if (plan.layer_count() != layers) {
    return Invalid(fmt::format("expected {} layers; found {}", layers, plan.layer_count()));
  }
  if (plan.replicas < 1) return Invalid(fmt::format("expected at least one replica; found {}", plan.replicas));
  if (rank < 0 || rank >= plan.rank_count()) {
    return Invalid(fmt::format("expected a rank below {}; found {}", plan.rank_count(), rank));
  }
  if (plan.micro_batches < 1 || plan.micro_batch_size < 1 || plan.schedule.micro_batches != plan.micro_batches) {
    return Invalid(fmt::format("expected {} micro-batches, as in the schedule, of at least one sample; found {} of {}",
                               plan.schedule.micro_batches, plan.micro_batches, plan.micro_batch_size));
  }
  if (plan.schedule.stages != static_cast<int32_t>(plan.stages.size())) {
    return Invalid(
        fmt::format("expected {} stages, as in the schedule; found {}", plan.schedule.stages, plan.stages.size()));
  }
  if (plan.rank_count() > 1 && !has_transport) {
    return Invalid("expected a transport for more than one rank; found none");
  }
  return absl::OkStatus();
}

absl::Status CheckLayers(const planner::Plan& plan) {
  int32_t next = 0;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const planner::StagePlacement& stage = plan.stages[s];
    if (stage.first_layer != next || stage.end_layer <= next || stage.rank != plan.schedule.rank_of_stage[s]) {
      return Invalid(fmt::format("stage {}: expected layers from {} on rank {}; found {} to {} on rank {}", s, next,
                                 plan.schedule.rank_of_stage[s], stage.first_layer, stage.end_layer, stage.rank));
    }
    next = stage.end_layer;
  }
  int32_t before = -1;
  for (const int32_t layer : plan.recomputed_layers) {
    if (layer <= before || layer >= next) {
      return Invalid(fmt::format("recomputed layers: expected numbers that ascend, below {}; found {} after {}", next,
                                 layer, before));
    }
    before = layer;
  }
  return absl::OkStatus();
}

// Either every stage has its reduction or none has: schedule::Validate saw to that.
absl::Status CheckReductions(const planner::Plan& plan) {
  if (plan.replicas == 1) return absl::OkStatus();
  for (const std::vector<Action>& actions : plan.schedule.ranks) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kReduce) return absl::OkStatus();
    }
  }
  return Invalid(fmt::format("expected a reduction R of every stage for {} replicas; found none", plan.replicas));
}

}  // namespace

absl::Status CheckPlan(const planner::Plan& plan, int64_t layers, int32_t rank, bool has_transport) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(plan, layers, rank, has_transport));
  ATOLL_RETURN_IF_ERROR(schedule::Validate(plan.schedule));
  ATOLL_RETURN_IF_ERROR(CheckLayers(plan));
  ATOLL_RETURN_IF_ERROR(CheckReductions(plan));
  ATOLL_RETURN_IF_ERROR(planner::FrozenFlowOf(plan).status());
  return schedule::AccumulatesInOrder(plan.schedule);
}

absl::Status CheckSelfConditioning(const planner::Plan& plan, bool needed) {
  if (!plan.is_self_conditioned()) {
    if (!needed) return absl::OkStatus();
    return Invalid("expected a schedule for self-conditioned steps; found none");
  }
  // Then sums, pieces and reductions have one order in both.
  ATOLL_RETURN_IF_ERROR(schedule::CheckSelfConditioned(plan.self_conditioned, plan.schedule));
  return WithContext(schedule::Validate(plan.self_conditioned), "self-conditioned schedule");
}

}  // namespace atl::trainer
