// Steps in which a self-conditioned model sees its own estimate of the sample (Analog Bits, arXiv 2208.04202; in
// pipelines DiffusionPipe, Tian et al. 2024). Before F of a micro-batch, every stage runs C of it, a forward without a
// graph, and the last stage's result goes back to the first. Pure.
#pragma once

#include "absl/status/status.h"
#include "common/schedule/action.h"
#include "common/schedule/simulator.h"

namespace atl::schedule {

// Returns `schedule` with a C of every stage and micro-batch; other actions of a rank keep their order. Greedy on the
// simulator's clock: a free rank runs a C whose input has arrived, the latest stage's first, else its next action if
// that can start. On every stage, C's run in the order in which the first stage runs F, so that lanes agree. At equal
// costs and free transfers, 1F1B takes just M forwards longer for M micro-batches, if M is at least the number of
// stages.
//
// `schedule` has no C, and Simulate accepts it with `costs`; otherwise undefined.
Schedule AddSelfConditioning(const Schedule& schedule, const SimulationCosts& costs);

// Checks that `self_conditioned` is `schedule`, which has no C, plus C actions. Otherwise INVALID_ARGUMENT
// (SCHEDULE_MISMATCH) with the count, or with rank, position and token. Does not check either's order: see Validate.
absl::Status CheckSelfConditioned(const Schedule& self_conditioned, const Schedule& schedule);

}  // namespace atl::schedule
