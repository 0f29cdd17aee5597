// Chooses the arithmetic of a reproducible request. The request keeps it, because another arithmetic gives other bits.
// Pure.
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

// The arithmetic that a reproducible request keeps, by network.
using RequestNumerics = std::map<int32_t, Numerics>;

// Returns the LaneState::numerics of the lanes that should evaluate a network: the arithmetic that most lanes hosting
// it share, then the one known longest (the smallest number); 0 if no lane hosts it.
int32_t ChooseNumerics(int64_t model, int32_t network, std::span<const LaneState> lanes);

// Describes the arithmetic of a request for its caller: equal texts mean equal bits. Returns the fingerprint itself if
// there is only one.
std::string DescribeNumerics(const RequestNumerics& numerics);

}  // namespace atl::router
