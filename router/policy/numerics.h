// On which arithmetic a reproducible request runs: it keeps to it, since other arithmetic gives other bits. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "router/policy/step_scheduler.h"

namespace atl::router {

// What a reproducible request keeps to; by network, the router network before the experts. Empty: not chosen yet.
struct RequestNumerics {
  std::vector<int32_t> numbers;
  std::vector<std::string> fingerprints;

  // 0 when not chosen: any lane will do.
  int32_t number(int32_t network) const { return numbers.empty() ? 0 : numbers[network - kRouterNetwork]; }
  std::string fingerprint(int32_t network) const {
    return fingerprints.empty() ? "" : fingerprints[network - kRouterNetwork];
  }
};

// For the router network and then each of the experts, LaneState::numerics of the lanes that are to answer for it;
// empty when nobody hosts any network of `model`. Lanes are grouped by their numerics. All networks go to the group
// that hosts most of them, then the one of most lanes that host any, then the one known longest (the smallest number);
// those that it does not host to the best of the groups that do, as a router network beside expert servers on other
// devices.
std::vector<int32_t> ChooseNumerics(int64_t model, int32_t experts, std::span<const LaneState> lanes);

// What a request is told of the arithmetic that drew it, from the fingerprints by network as above: equal answers mean
// equal bits. The fingerprint itself, where there is but one.
std::string DescribeNumerics(std::span<const std::string> fingerprints);

}  // namespace atl::router
