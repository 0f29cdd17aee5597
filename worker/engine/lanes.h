// Determines the lanes that a plan needs and the lane that an action uses. Ranks in lanes are the island's. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/planner/plan.h"
#include "worker/transport/transport.h"

namespace atl::engine {

// Returns the lanes that `plan` needs, for Transport::Connect, in a fixed order: all of the island's, the same on every
// rank. A gradient lane whose boundary has no tensor with a gradient stays unused.
std::vector<transport::Lane> LanesOf(const planner::Plan& plan);

// Returns the island's rank that holds `stage` of `replica`.
int32_t RankOf(const planner::Plan& plan, int32_t replica, int32_t stage);

// Returns the lane through the boundary before `stage` of `replica`: one each way (kForward, kGradient), and one for
// the extra forward of self-conditioned steps (kSelfConditioning), where the last stage precedes the first. Otherwise
// returns nullopt before the first stage, behind the last, and if both sides lie on one rank.
std::optional<transport::Lane> LaneBefore(const planner::Plan& plan, int32_t replica, int32_t stage,
                                          transport::LaneKind kind);

// Returns the lane by which `from_replica` sends to `to_replica` when the gradients of `stage` are summed.
transport::Lane ReduceLane(const planner::Plan& plan, int32_t stage, int32_t from_replica, int32_t to_replica);

}  // namespace atl::engine
