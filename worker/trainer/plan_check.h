// Checks the trainer's requirements for a plan, beyond those for its schedule alone. Pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/planner/plan.h"

namespace atl::trainer {

// Returns OK, or INVALID_ARGUMENT (PLAN_INVALID, or a reason of the schedule's checks) that names the defect: layers
// and stages that are not consecutive, a rank outside the island, a missing transport, unknown recomputed layers,
// replicas without reductions, or gradients that do not accumulate in the order of plain training.
absl::Status CheckPlan(const planner::Plan& plan, int64_t layers, int32_t rank, bool has_transport);

// Returns OK, or INVALID_ARGUMENT likewise: a schedule for self-conditioned steps is `needed` but missing, or it does
// more than add C's to the plan's schedule.
absl::Status CheckSelfConditioning(const planner::Plan& plan, bool needed);

}  // namespace atl::trainer
