// What routers say of the versions that they use and of the experts that they ask. Pure; `now` is monotonic time since
// an arbitrary start.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/placement/fading_sum.h"

namespace atl::serving {

enum class UseState { kLoading, kServing, kDraining };

struct VersionUse {
  std::string model;
  std::string version;
  UseState state = UseState::kLoading;
  bool pinned = false;
  int64_t requests = 0;
  std::vector<int64_t> chosen;  // image-steps by expert, since the report before
};

struct RoutingReport {
  std::string router_id;
  std::vector<VersionUse> uses;
  bool needs_router_networks = false;
};

using VersionName = std::pair<std::string, std::string>;  // model, version

// Between two reports of a router.
inline constexpr absl::Duration kReportInterval = absl::Seconds(2);
// A router that is silent for so long is forgotten. Long: what it uses may be dropped then.
inline constexpr absl::Duration kRouterSilence = absl::Seconds(30);
inline constexpr size_t kMaxRouters = 4096;

// Not thread-safe.
class RouterReports {
 public:
  // Whether any router's versions, or how it uses them, changed. INVALID_ARGUMENT (INVALID_ROUTING_REPORT) names the
  // field; RESOURCE_EXHAUSTED (TOO_MANY_ROUTERS).
  absl::StatusOr<bool> Take(absl::Duration now, const RoutingReport& report);
  // Forgets the silent ones: their ids.
  std::vector<std::string> Expire(absl::Duration now);
  // When the next one would be forgotten; InfiniteDuration without routers.
  absl::Duration NextExpiry() const;

  // Versions that some router serves, drains or has requests of: their networks must stay.
  std::set<VersionName> InUse() const;
  // Versions that some router keeps beside the serving one.
  std::set<VersionName> Pinned() const;
  bool needs_router_networks() const;
  // How often each expert was asked lately, in image-steps; empty where nothing is known.
  std::vector<int64_t> Chosen(absl::Duration now, const VersionName& version) const;

  size_t size() const { return routers_.size(); }

 private:
  // What placement depends on.
  struct Use {
    bool in_use = false;
    bool pinned = false;
    bool operator==(const Use&) const = default;
  };
  struct Router {
    std::map<VersionName, Use> uses;
    bool needs_router_networks = false;
    absl::Duration heard;
  };
  std::map<std::string, Router> routers_;
  std::map<VersionName, std::vector<placement::FadingSum>> chosen_;  // by expert
};

}  // namespace atl::serving
