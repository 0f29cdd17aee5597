// Which lanes a plan needs, and which one an action uses. Ranks in lanes are the island's. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/planner/plan.h"
#include "worker/transport/transport.h"

namespace atl::engine {

// Lanes that `plan` needs, for Transport::Connect, in a fixed order: all of the island's, the same on every rank.
// A gradient lane whose boundary has no tensor with a gradient stays unused.
std::vector<transport::Lane> LanesOf(const planner::Plan& plan);

// The island's rank that holds `stage` of `replica`.
int32_t RankOf(const planner::Plan& plan, int32_t replica, int32_t stage);

// The lane through the boundary before `stage` of `replica`, one each way (kForward, kGradient) and one for the extra
// forward of self-conditioned steps (kSelfConditioning), whose stage before the first is the last; otherwise none
// before the first stage, behind the last, and where both sides lie on one rank.
std::optional<transport::Lane> LaneBefore(const planner::Plan& plan, int32_t replica, int32_t stage,
                                          transport::LaneKind kind);

// What two replicas of `stage` exchange when its gradients are summed; one each way.
transport::Lane ReduceLane(const planner::Plan& plan, int32_t stage, int32_t from_replica, int32_t to_replica);

}  // namespace atl::engine
