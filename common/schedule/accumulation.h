// Whether a schedule adds gradients in the order of plain training. Pure.
#pragma once

#include "absl/status/status.h"
#include "common/schedule/action.h"

namespace atl::schedule {

// Sums of floating-point numbers depend on their order: with every stage's gradients ended (W or B) in micro-batch
// order, and its input gradients computed in that order too (norms and biases accumulate in I), the sums equal those of
// one process that accumulates micro-batch after micro-batch, bit for bit. INVALID_ARGUMENT (SCHEDULE_ACCUMULATION)
// with rank, position and reason otherwise. Apart from Validate, because such a schedule still runs, and PyTorch's may
// be so. `schedule` must be valid.
absl::Status AccumulatesInOrder(const Schedule& schedule);

}  // namespace atl::schedule
