// Which frozen piece reads which, and which ranks need what it makes: worked out from a plan's pieces. Pure.
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
  // By piece: the ranks of the pipeline that need its output, its own among them where that is so; ascending.
  std::vector<std::vector<int32_t>> needed_by;
};

// The components of a job, for Plan::components.
std::vector<FrozenComponent> ComponentsOf(const std::vector<spec::FrozenSpec>& specs);

// Pieces for a plan that has components and none, in both of its schedules: all work after the flush, each rank its
// share of the samples.
void AppendPieces(Plan* plan);

// The flow of a plan without components is empty. INVALID_ARGUMENT (FROZEN_PIECES) with the piece or the component when
// some layer does not run exactly once over every sample of a replica's batch, a piece begins where no piece ends, or
// lies on another rank than its action; what schedule::Validate says of a schedule in which pieces wait for ever, and
// schedule::CheckSelfConditioned of a second one that is not the first and C's.
absl::StatusOr<FrozenFlow> FrozenFlowOf(const Plan& plan);

}  // namespace atl::planner
