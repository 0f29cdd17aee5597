// Plans the networks of every expert server from the wanted versions, and reports the shortages. Pure.
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
  // By digest of the version; absent: being read. Networks of a version with unknown weights stay on their servers.
  std::map<std::string, absl::StatusOr<VersionWeights>> weights;
  std::vector<const ExpertServer*> servers;
  // Networks that servers recently failed to load, by server_id.
  std::set<std::pair<std::string, NetworkId>> failing;
  // Recent requests per expert, in image-steps.
  std::map<VersionName, std::vector<int64_t>> chosen;
  // Routers evaluate router networks themselves, unless a router reports otherwise: they are small, and evaluated at
  // every step.
  bool router_networks = false;
};

// A version with a wanted network that fits on no server.
struct Shortage {
  std::vector<int32_t> networks;
  int64_t needed_bytes = 0;   // of all its networks, each once; 0: unknown
  int64_t lacking_bytes = 0;  // of those that do not fit
  // RESOURCE_EXHAUSTED (EXPERT_SERVERS_FULL), UNAVAILABLE (NO_EXPERT_SERVER), or the error of reading its weights.
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

// Assigns each network to `replicas` servers, hot ones to more.
HostingPlan PlanHosting(const HostingFacts& facts, int32_t replicas);

// Whether every expert of the version is ready on some server.
bool IsReady(const std::string& model, const PublishedVersion& version, std::span<const ExpertServer* const> servers);

}  // namespace atl::serving
