// On which arithmetic a reproducible request runs: it keeps to it, since other arithmetic gives other bits. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "router/policy/step_scheduler.h"

namespace atl::router {

// Of the lanes, grouped by LaneState::numerics, the group that hosts most networks of `model`, then the one of most
// lanes that host any, then the one known longest (the smallest number). 0 when nobody hosts any.
int32_t ChooseNumerics(int64_t model, std::span<const LaneState> lanes);

}  // namespace atl::router
