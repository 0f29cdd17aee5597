// Derives from a plan's pieces the data flow between frozen pieces and to ranks. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/plan.h"
#include "common/schedule/dependency_order.h"
#include "common/spec/spec.h"

namespace atl::planner {

struct FrozenFlow {
  // By piece: the pieces whose outputs it reads, in order of their samples.
  schedule::FrozenReads reads;
  // By piece: the ranks of the pipeline that need its output, possibly including its own; ascending.
  std::vector<std::vector<int32_t>> needed_by;
};

// Returns the components of a job, for Plan::components.
std::vector<FrozenComponent> ComponentsOf(const std::vector<spec::FrozenSpec>& specs);

// Adds pieces to a plan with components but no pieces, in both of its schedules: all work runs after the flush, and
// each rank takes its share of the samples.
void AppendPieces(Plan* plan);

// Returns the flow; empty for a plan without components. INVALID_ARGUMENT (FROZEN_PIECES) with the piece or the
// component if some layer does not run exactly once over every sample of a replica's batch, or if a piece begins where
// no piece ends, or lies on another rank than its action. Also errors of schedule::Validate for pieces that wait for
// ever, and of schedule::CheckSelfConditioned for a second schedule that is not the first plus C actions.
absl::StatusOr<FrozenFlow> FrozenFlowOf(const Plan& plan);

}  // namespace atl::planner
