#include "router/policy/numerics.h"

#include <algorithm>

#include "fmt/format.h"

namespace atl::router {

int32_t ChooseNumerics(int64_t model, int32_t network, std::span<const LaneState> lanes) {
  std::map<int32_t, int64_t> hosting;  // lanes, by their numerics
  for (const LaneState& lane : lanes) {
    for (const LaneNetwork& entry : lane.networks) {
      if (entry.model == model && entry.network == network) ++hosting[lane.numerics];
    }
  }
  const auto most = std::max_element(hosting.begin(), hosting.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == hosting.end() ? 0 : most->first;
}

std::string DescribeNumerics(const RequestNumerics& numerics) {
  if (numerics.empty()) return "";
  const std::string& last = numerics.rbegin()->second.fingerprint;
  std::string text = last;
  for (const auto& [network, entry] : numerics) {
    if (entry.fingerprint == last) continue;
    const std::string name = network == kRouterNetwork ? "router network" : fmt::format("expert {}", network);
    text += fmt::format("; {}: {}", name, entry.fingerprint);
  }
  return text;
}

}  // namespace atl::router
