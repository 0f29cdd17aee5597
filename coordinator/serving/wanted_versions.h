// Which versions' networks expert servers are to host. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/placement/placement.h"
#include "coordinator/serving/router_reports.h"

namespace atl::serving {

using placement::VersionRole;

struct PublishedVersion {
  std::string version;
  std::string uri;     // folder of model_index.json
  std::string digest;  // of model_index.json
  int32_t experts = 0;
  bool operator==(const PublishedVersion&) const = default;
};

struct PublishedModel {
  std::string name;
  std::string serving;  // version
  std::vector<PublishedVersion> versions;
  bool operator==(const PublishedModel&) const = default;
};

// What routers and servers say of versions.
struct VersionFacts {
  std::set<VersionName> in_use;  // by routers
  std::set<VersionName> pinned;
  std::set<std::string> hosted;  // digests of which some server hosts or loads a network
  // Models whose serving version has been ready on servers for long enough that routers would have said if they used
  // another one.
  std::set<std::string> rolled;
};

struct WantedVersion {
  std::string model;
  PublishedVersion version;
  VersionRole role = VersionRole::kStays;
};

// By model, newest version first. The serving version and pinned ones stay, whether or not a router is there. Others
// are wanted while a router uses them; and, as long as no router says that it uses the serving version, while servers
// host them and the serving version is not ready yet.
std::vector<WantedVersion> DecideWanted(std::span<const PublishedModel> models, const VersionFacts& facts);

}  // namespace atl::serving
