#include "coordinator/serving/hosting_plan.h"

#include <algorithm>
#include <numeric>

#include "common/base/errors.h"
#include "common/placement/placement.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::serving {
namespace {

// So many image-steps, asked of every expert alike, are taken for granted: the first few requests make no expert hot.
constexpr double kAskedOfEach = 64;

placement::Holder HolderOf(const ExpertServer& server, const HostingFacts& facts) {
  placement::Holder holder{.memory_bytes = server.memory_bytes};
  for (const HostedNetwork& hosted : server.networks) {
    if (hosted.state == NetworkState::kFailed) continue;
    holder.holding.push_back(hosted.network);
    if (hosted.state == NetworkState::kLoading) holder.loading.push_back(hosted.network);
  }
  for (const auto& [server_id, network] : facts.failing) {
    if (server_id == server.server_id) holder.failing.push_back(network);
  }
  return holder;
}

NetworkId NetworkOf(const WantedVersion& wanted, int32_t expert) {
  return {.model = wanted.model, .version = wanted.version.version, .digest = wanted.version.digest, .expert = expert};
}

class Planning {
 public:
  explicit Planning(const HostingFacts& facts) : facts_(facts) {
    for (const ExpertServer* server : facts.servers) {
      for (const HostedNetwork& hosted : server->networks) {
        if (hosted.state == NetworkState::kFailed) continue;
        int64_t& bytes = hosted_[hosted.network];
        bytes = std::max(bytes, hosted.bytes);
      }
    }
    for (const WantedVersion& version : facts.versions) Want(version);
  }

  HostingPlan Plan(int32_t replicas) {
    std::vector<placement::Holder> servers;
    for (const ExpertServer* server : facts_.servers) servers.push_back(HolderOf(*server, facts_));
    placement::Placement placement = placement::Place(servers, wanted_, replicas);
    HostingPlan plan{.shortages = std::move(unknown_), .over_memory_bytes = placement.over_memory_bytes};
    for (size_t i = 0; i < servers.size(); ++i) {
      plan.assigned[facts_.servers[i]->server_id] = std::move(placement.assigned[i]);
    }
    for (const NetworkId& network : placement.unplaced) {
      plan.shortages[{network.model, network.version}].networks.push_back(network.expert);
    }
    for (const NetworkId& network : placement.no_room) {
      plan.shortages[{network.model, network.version}].lacking_bytes += bytes_.at(network);
      plan.lacking_bytes += bytes_.at(network);
    }
    for (auto& [version, shortage] : plan.shortages) {
      std::sort(shortage.networks.begin(), shortage.networks.end());
      if (shortage.error.ok()) Explain(version, &shortage);
    }
    return plan;
  }

 private:
  void Want(const WantedVersion& version) {
    const auto weights = facts_.weights.find(version.version.digest);
    const bool known = weights != facts_.weights.end() && weights->second.ok();
    const std::vector<double> asked = AskedOf(version);
    const double average = std::accumulate(asked.begin(), asked.end(), 0.0) / std::max<double>(1, std::ssize(asked));
    for (int32_t expert = facts_.router_networks ? kRouterNetwork : 0; expert < version.version.experts; ++expert) {
      const NetworkId network = NetworkOf(version, expert);
      std::optional<int64_t> bytes;
      if (known) {
        const auto entry = weights->second->find(expert);
        if (entry != weights->second->end()) bytes = entry->second;
      } else if (const auto hosted = hosted_.find(network); hosted != hosted_.end()) {
        bytes = hosted->second;
      }
      if (!bytes.has_value()) {
        // Weights that are still being read are not reported yet.
        if (weights == facts_.weights.end() || known) continue;
        Shortage& shortage = unknown_[{version.model, version.version.version}];
        shortage.networks.push_back(expert);
        shortage.error = WithContext(weights->second.status(),
                                     fmt::format("model '{}' version '{}': expert servers get no more of it",
                                                 version.model, version.version.version));
        continue;
      }
      placement::WantedNetwork wanted{.network = network, .bytes = *bytes, .role = version.role};
      if (expert >= 0) {
        wanted.use = asked[static_cast<size_t>(expert)];
        wanted.heat = wanted.use / average;
      }
      wanted_.push_back(wanted);
      bytes_[network] = *bytes;
      needed_[{version.model, version.version.version}] += *bytes;
    }
  }

  // Image-steps by expert.
  std::vector<double> AskedOf(const WantedVersion& version) const {
    std::vector<double> asked(static_cast<size_t>(version.version.experts), kAskedOfEach);
    const auto chosen = facts_.chosen.find({version.model, version.version.version});
    if (chosen == facts_.chosen.end()) return asked;
    for (size_t i = 0; i < std::min(asked.size(), chosen->second.size()); ++i) asked[i] += chosen->second[i];
    return asked;
  }

  void Explain(const VersionName& version, Shortage* shortage) const {
    shortage->needed_bytes = needed_.at(version);
    const std::string what =
        fmt::format("model '{}' version '{}': no expert server hosts network{} {}", version.first, version.second,
                    shortage->networks.size() == 1 ? "" : "s", fmt::join(shortage->networks, ", "));
    if (facts_.servers.empty()) {
      shortage->error =
          MakeError(absl::StatusCode::kUnavailable, "NO_EXPERT_SERVER", fmt::format("{}: no server is known", what));
      return;
    }
    int64_t memory = 0;
    for (const ExpertServer* server : facts_.servers) memory += server->memory_bytes;
    shortage->error = MakeError(
        absl::StatusCode::kResourceExhausted, "EXPERT_SERVERS_FULL",
        fmt::format("{}: its weights take {} bytes, of which {} have no room on {} expert server{} with {} bytes", what,
                    shortage->needed_bytes, shortage->lacking_bytes, facts_.servers.size(),
                    facts_.servers.size() == 1 ? "" : "s", memory));
  }

  const HostingFacts& facts_;
  std::map<NetworkId, int64_t> hosted_;  // bytes, as servers tell
  std::map<NetworkId, int64_t> bytes_;
  std::map<VersionName, int64_t> needed_;
  std::vector<placement::WantedNetwork> wanted_;
  std::map<VersionName, Shortage> unknown_;
};

}  // namespace

HostingPlan PlanHosting(const HostingFacts& facts, int32_t replicas) {
  return Planning(facts).Plan(replicas);
}

bool IsReady(const std::string& model, const PublishedVersion& version, std::span<const ExpertServer* const> servers) {
  std::set<int32_t> ready;
  for (const ExpertServer* server : servers) {
    for (const HostedNetwork& hosted : server->networks) {
      if (hosted.state == NetworkState::kReady && hosted.network.digest == version.digest &&
          hosted.network.model == model && hosted.network.expert >= 0) {
        ready.insert(hosted.network.expert);
      }
    }
  }
  return version.experts > 0 && std::ssize(ready) >= version.experts;
}

}  // namespace atl::serving
