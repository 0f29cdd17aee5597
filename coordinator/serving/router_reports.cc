#include "coordinator/serving/router_reports.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::serving {
namespace {

constexpr size_t kMaxReportName = 256;
constexpr size_t kMaxUses = 1000;
constexpr size_t kMaxExperts = 10'000;
// The limit per expert: the sum over kMaxExperts does not overflow.
constexpr double kMostChosen = 1e14;

absl::Status Invalid(const std::string& field, const std::string& message) {
  return FieldError(field, "INVALID_ROUTING_REPORT", message);
}

absl::Status CheckReportName(const std::string& field, const std::string& text) {
  if (!text.empty() && text.size() <= kMaxReportName) return absl::OkStatus();
  return Invalid(field, fmt::format("expected 1 to {} characters, found {}", kMaxReportName, text.size()));
}

absl::Status CheckUse(const std::string& field, const VersionUse& use) {
  ATOLL_RETURN_IF_ERROR(CheckReportName(field + ".model", use.model));
  ATOLL_RETURN_IF_ERROR(CheckReportName(field + ".version", use.version));
  if (use.requests < 0) {
    return Invalid(field + ".requests", fmt::format("expected at least 0, found {}", use.requests));
  }
  if (use.chosen.size() > kMaxExperts) {
    return Invalid(field + ".chosen", fmt::format("expected at most {}, found {}", kMaxExperts, use.chosen.size()));
  }
  const auto negative = std::find_if(use.chosen.begin(), use.chosen.end(), [](int64_t count) { return count < 0; });
  if (negative == use.chosen.end()) return absl::OkStatus();
  return Invalid(fmt::format("{}.chosen[{}]", field, negative - use.chosen.begin()),
                 fmt::format("expected at least 0, found {}", *negative));
}

absl::Status Check(const RoutingReport& report) {
  ATOLL_RETURN_IF_ERROR(CheckReportName("router_id", report.router_id));
  if (report.uses.size() > kMaxUses) {
    return Invalid("uses", fmt::format("expected at most {}, found {}", kMaxUses, report.uses.size()));
  }
  for (size_t i = 0; i < report.uses.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(CheckUse(fmt::format("uses[{}]", i), report.uses[i]));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> RouterReports::Take(absl::Duration now, const RoutingReport& report) {
  ATOLL_RETURN_IF_ERROR(Check(report));
  const auto known = routers_.find(report.router_id);
  if (known == routers_.end() && routers_.size() >= kMaxRouters) {
    return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_ROUTERS",
                     fmt::format("expected at most {} routers, found one more", kMaxRouters));
  }
  Router router{.needs_router_networks = report.needs_router_networks, .heard = now};
  for (const VersionUse& use : report.uses) {
    Use& kept = router.uses[{use.model, use.version}];
    kept.in_use = kept.in_use || use.state != UseState::kLoading || use.requests > 0;
    kept.pinned = kept.pinned || use.pinned;
    if (use.chosen.empty()) continue;
    std::vector<placement::FadingSum>& chosen = chosen_[{use.model, use.version}];
    chosen.resize(std::max(chosen.size(), use.chosen.size()));
    for (size_t i = 0; i < use.chosen.size(); ++i) chosen[i].Add(now, static_cast<double>(use.chosen[i]));
  }
  const bool changed = known == routers_.end() || known->second.uses != router.uses ||
                       known->second.needs_router_networks != router.needs_router_networks;
  routers_[report.router_id] = std::move(router);
  return changed;
}

std::vector<std::string> RouterReports::Expire(absl::Duration now) {
  std::vector<std::string> gone;
  std::erase_if(routers_, [&](const auto& entry) {
    const bool silent = entry.second.heard + kRouterSilence <= now;
    if (silent) gone.push_back(entry.first);
    return silent;
  });
  // So that versions of long ago take no memory.
  std::erase_if(chosen_, [&](const auto& entry) {
    return std::none_of(routers_.begin(), routers_.end(),
                        [&](const auto& router) { return router.second.uses.contains(entry.first); });
  });
  return gone;
}

absl::Duration RouterReports::NextExpiry() const {
  absl::Duration next = absl::InfiniteDuration();
  for (const auto& [id, router] : routers_) next = std::min(next, router.heard + kRouterSilence);
  return next;
}

std::set<VersionName> RouterReports::InUse() const {
  std::set<VersionName> versions;
  for (const auto& [id, router] : routers_) {
    for (const auto& [version, use] : router.uses) {
      if (use.in_use) versions.insert(version);
    }
  }
  return versions;
}

std::set<VersionName> RouterReports::Pinned() const {
  std::set<VersionName> versions;
  for (const auto& [id, router] : routers_) {
    for (const auto& [version, use] : router.uses) {
      if (use.pinned) versions.insert(version);
    }
  }
  return versions;
}

bool RouterReports::needs_router_networks() const {
  return std::any_of(routers_.begin(), routers_.end(),
                     [](const auto& entry) { return entry.second.needs_router_networks; });
}

std::vector<int64_t> RouterReports::Chosen(absl::Duration now, const VersionName& version) const {
  std::vector<int64_t> chosen;
  const auto known = chosen_.find(version);
  if (known == chosen_.end()) return chosen;
  for (const placement::FadingSum& count : known->second) {
    chosen.push_back(static_cast<int64_t>(std::min(count.At(now), kMostChosen)));
  }
  return chosen;
}

}  // namespace atl::serving
