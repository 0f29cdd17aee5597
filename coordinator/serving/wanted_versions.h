// Decides for which versions expert servers must host the networks. Pure.
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

// The reports of routers and servers on versions.
struct VersionFacts {
  std::set<VersionName> in_use;  // by routers
  std::set<VersionName> pinned;
  std::set<std::string> hosted;  // digests of versions with a network that a server hosts or loads
  // Models whose serving version has been ready on servers for so long that routers would have reported the use of
  // another one.
  std::set<std::string> rolled;
};

struct WantedVersion {
  std::string model;
  PublishedVersion version;
  VersionRole role = VersionRole::kStays;
};

// Returns the versions by model, newest first. The serving version and pinned versions stay, with or without a router.
// Others are wanted while a router uses them. While no router reports the serving version, others are also wanted as
// long as servers host them and the serving version is not ready yet.
std::vector<WantedVersion> DecideWanted(std::span<const PublishedModel> models, const VersionFacts& facts);

}  // namespace atl::serving
