// What the trainer needs of a plan beyond what its schedule must be by itself. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/planner/plan.h"

namespace atl::trainer {

// OK, or INVALID_ARGUMENT (PLAN_INVALID, or a reason of the schedule's checks) naming what differs: layers and stages
// that do not follow each other, a rank outside the island, a missing transport, recomputed layers that are not there;
// replicas without reductions; gradients that do not accumulate in the order of plain training.
absl::Status CheckPlan(const planner::Plan& plan, int64_t layers, int32_t rank, bool has_transport);

// OK, or INVALID_ARGUMENT likewise: a schedule for self-conditioned steps that is `needed` and not there, or that does
// more than add C's to the plan's schedule.
absl::Status CheckSelfConditioning(const planner::Plan& plan, bool needed);

}  // namespace atl::trainer
