// What every expert server is to host, from the versions that are wanted, and what is missing for it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/network_id.h"
#include "coordinator/serving/expert_servers.h"
#include "coordinator/serving/wanted_versions.h"

namespace atl::serving {

// Memory of a version's weights, by network.
using VersionWeights = std::map<int32_t, int64_t>;

struct HostingFacts {
  std::vector<WantedVersion> versions;
  // By digest of the version; absent: being read. Networks of a version whose weights are not known stay where they
  // lie.
  std::map<std::string, absl::StatusOr<VersionWeights>> weights;
  std::vector<const ExpertServer*> servers;
  // What servers could not load lately, by server_id.
  std::set<std::pair<std::string, NetworkId>> failing;
  // Image-steps by expert, asked lately.
  std::map<VersionName, std::vector<int64_t>> chosen;
  // Routers evaluate router networks themselves unless one says otherwise: they are small, and asked at every step.
  bool router_networks = false;
};

// A version of which a wanted network is to lie on no server.
struct Shortage {
  std::vector<int32_t> networks;
  int64_t needed_bytes = 0;   // of all its networks, each once; 0: not known
  int64_t lacking_bytes = 0;  // of those that found no room
  // RESOURCE_EXHAUSTED (EXPERT_SERVERS_FULL), UNAVAILABLE (NO_EXPERT_SERVER), or why its weights are not known.
  absl::Status error;
  bool operator==(const Shortage&) const = default;
};

struct HostingPlan {
  std::map<std::string, std::vector<NetworkId>> assigned;  // by server_id
  std::map<VersionName, Shortage> shortages;
  int64_t lacking_bytes = 0;
  int64_t over_memory_bytes = 0;
  bool operator==(const HostingPlan&) const = default;
};

// Each network is to lie on `replicas` servers, hot ones on more.
HostingPlan PlanHosting(const HostingFacts& facts, int32_t replicas);

// Whether every expert of the version is ready on some server.
bool IsReady(const std::string& model, const PublishedVersion& version, std::span<const ExpertServer* const> servers);

}  // namespace atl::serving
