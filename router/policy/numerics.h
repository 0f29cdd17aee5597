// On which arithmetic a reproducible request runs: it keeps to it, since other arithmetic gives other bits. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "router/policy/step_scheduler.h"

namespace atl::router {

struct Numerics {
  int32_t number = 0;  // LaneState::numerics; 0: not chosen yet, and any lane will do
  std::string fingerprint;
};

// What a reproducible request keeps to, by the networks that it asked.
using RequestNumerics = std::map<int32_t, Numerics>;

// LaneState::numerics of the lanes that are to answer for a network: those of which most lanes host it, then those
// known longest (the smallest number); 0 when no lane does.
int32_t ChooseNumerics(int64_t model, int32_t network, std::span<const LaneState> lanes);

// The arithmetic that drew a request, as its caller is told it: equal texts mean equal bits. The fingerprint itself,
// where there is but one.
std::string DescribeNumerics(const RequestNumerics& numerics);

}  // namespace atl::router
