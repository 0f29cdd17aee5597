// Routers' reports on the versions that they use and the experts that they call. Pure; `now` is monotonic time since an
// arbitrary start.
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

// The time between two reports of a router.
inline constexpr absl::Duration kReportInterval = absl::Seconds(2);
// A router is forgotten after this silence. It is long, because the networks that the router uses may then be dropped.
inline constexpr absl::Duration kRouterSilence = absl::Seconds(30);
inline constexpr size_t kMaxRouters = 4096;

// Not thread-safe.
class RouterReports {
 public:
  // Returns whether any router's versions, or their use, changed. INVALID_ARGUMENT (INVALID_ROUTING_REPORT) names the
  // field; RESOURCE_EXHAUSTED (TOO_MANY_ROUTERS).
  absl::StatusOr<bool> Take(absl::Duration now, const RoutingReport& report);
  // Forgets silent routers and returns their ids.
  std::vector<std::string> Expire(absl::Duration now);
  // Returns when the next router would be forgotten; InfiniteDuration without routers.
  absl::Duration NextExpiry() const;

  // Returns the versions that a router serves, drains or has requests for: their networks must stay.
  std::set<VersionName> InUse() const;
  // Returns the versions that a router keeps beside the serving one.
  std::set<VersionName> Pinned() const;
  bool needs_router_networks() const;
  // Returns how often each expert was recently chosen, in image-steps; empty if unknown.
  std::vector<int64_t> Chosen(absl::Duration now, const VersionName& version) const;

  size_t size() const { return routers_.size(); }

 private:
  // The part of a report on which placement depends.
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
