// Plans between domain and proto. A schedule travels as its text (docs/formats.md).
#pragma once

#include "absl/status/statusor.h"
#include "atoll/plan/v1/plan.pb.h"
#include "common/planner/plan.h"

namespace atl::wire {

atlpb::plan::v1::Plan ToProto(const planner::Plan& plan);

// INVALID_ARGUMENT with the field: a schedule whose text is invalid, a self-conditioned one that is not the schedule
// plus C actions, or stages that disagree with the schedule or leave a gap between layers. Does not check the order of
// actions: see schedule::Validate.
absl::StatusOr<planner::Plan> FromProto(const atlpb::plan::v1::Plan& proto);

}  // namespace atl::wire
