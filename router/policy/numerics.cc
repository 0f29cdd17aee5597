#include "router/policy/numerics.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "fmt/format.h"

namespace atl::router {
namespace {

struct Group {
  std::set<int32_t> networks;
  int64_t lanes = 0;

  auto rank() const { return std::pair(networks.size(), lanes); }
};

std::map<int32_t, Group> GroupsOf(int64_t model, std::span<const LaneState> lanes) {
  std::map<int32_t, Group> groups;
  for (const LaneState& lane : lanes) {
    bool any = false;
    for (const LaneNetwork& network : lane.networks) {
      if (network.model != model) continue;
      groups[lane.numerics].networks.insert(network.network);
      any = true;
    }
    if (any) ++groups[lane.numerics].lanes;
  }
  return groups;
}

}  // namespace

std::vector<int32_t> ChooseNumerics(int64_t model, int32_t experts, std::span<const LaneState> lanes) {
  const std::map<int32_t, Group> groups = GroupsOf(model, lanes);
  if (groups.empty()) return {};
  std::vector<std::pair<int32_t, Group>> best(groups.begin(), groups.end());
  std::stable_sort(best.begin(), best.end(),
                   [](const auto& a, const auto& b) { return a.second.rank() > b.second.rank(); });
  std::vector<int32_t> chosen;
  for (int32_t network = kRouterNetwork; network < experts; ++network) {
    const auto hosting = std::find_if(best.begin(), best.end(),
                                      [&](const auto& group) { return group.second.networks.contains(network); });
    // One that nobody hosts yet is waited for where the others are.
    chosen.push_back(hosting == best.end() ? best.front().first : hosting->first);
  }
  return chosen;
}

std::string DescribeNumerics(std::span<const std::string> fingerprints) {
  if (fingerprints.empty()) return "";
  const std::string& last = fingerprints.back();
  std::string text = last;
  for (size_t i = 0; i < fingerprints.size(); ++i) {
    if (fingerprints[i] == last) continue;
    const std::string network = i == 0 ? std::string("router network") : fmt::format("expert {}", i - 1);
    text += fmt::format("; {}: {}", network, fingerprints[i]);
  }
  return text;
}

}  // namespace atl::router
