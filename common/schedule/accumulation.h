// Checks that a schedule adds gradients in the order of plain training. Pure.
#pragma once

#include "absl/status/status.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// OK if every stage's gradients end (W or B) in micro-batch order, and its input gradients are computed in that order
// too (norms and biases accumulate in I). Floating-point sums depend on their order; these then equal bit for bit those
// of one process that accumulates micro-batch after micro-batch. Otherwise INVALID_ARGUMENT (SCHEDULE_ACCUMULATION)
// with rank, position and reason. Not part of Validate, because other schedules still run, and PyTorch's may be such.
// `schedule` must be valid.
absl::Status AccumulatesInOrder(const Schedule& schedule);

}  // namespace atl::schedule
