#include "router/policy/version_roll.h"

#include <algorithm>

#include "common/base/network_id.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

// So many missing networks are named; the rest is counted.
constexpr size_t kNamedNetworks = 8;

using Statuses = std::vector<VersionStatus>;
using Names = std::vector<std::string>;

bool Contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const VersionStatus* Find(const Statuses& versions, const std::string& version) {
  const auto found = std::find_if(versions.begin(), versions.end(),
                                  [&](const VersionStatus& status) { return status.version == version; });
  return found == versions.end() ? nullptr : &*found;
}

std::optional<RollDecision> DecideLeaving(absl::Duration now, const std::optional<ServingChoice>& wanted,
                                          const Statuses& versions, const Names& pinned) {
  for (const VersionStatus& status : versions) {
    if (wanted && wanted->version == status.version) continue;
    if (status.state == VersionState::kDraining && status.requests == 0) {
      return RollDecision{RollAction::kDrop, status.version, "its last request is done"};
    }
    if (status.state == VersionState::kDraining && now >= status.drain_until) {
      return RollDecision{RollAction::kEndRequests, status.version,
                          fmt::format("{} requests have not ended in time", status.requests)};
    }
    if (Contains(pinned, status.version)) continue;
    if (status.state == VersionState::kReady || status.state == VersionState::kFailed) {
      return RollDecision{RollAction::kDrop, status.version, "another version is wanted by now"};
    }
  }
  return std::nullopt;
}

RollDecision DecideLoad(absl::Duration now, const std::string& version, std::string why, const Statuses& versions) {
  for (const VersionStatus& status : versions) {
    if (status.state == VersionState::kLoading) {
      return {RollAction::kNone, status.version, "it is loading"};
    }
    if (status.state == VersionState::kFailed && status.version == version && now < status.retry_at) {
      return {RollAction::kNone, status.version, "it could not be loaded, and another try is not due"};
    }
  }
  return {RollAction::kLoad, version, std::move(why)};
}

// Returns the reason why a loaded version cannot take requests yet; unset: it can.
std::optional<RollDecision> DecideWaiting(absl::Duration now, const VersionStatus& status, const Statuses& versions) {
  const ServerNeeds& needs = status.servers;
  if (!needs.missing.empty() && needs.without_servers) {
    return DecideLoad(now, status.version, "no expert server is left: the router evaluates all of it", versions);
  }
  if (!needs.missing.empty()) return RollDecision{RollAction::kWait, status.version, DescribeMissing(needs)};
  return std::nullopt;
}

RollDecision DecideWanted(absl::Duration now, const ServingChoice& wanted, const Statuses& versions) {
  const std::string why = fmt::format("generation {} wants it", wanted.generation);
  const VersionStatus* const found = Find(versions, wanted.version);
  if (found == nullptr) return DecideLoad(now, wanted.version, why, versions);
  const bool loaded = found->state == VersionState::kReady || found->state == VersionState::kOffered ||
                      found->state == VersionState::kDraining;
  if (loaded) {
    if (auto waiting = DecideWaiting(now, *found, versions)) return *waiting;
  }
  switch (found->state) {
    case VersionState::kServing:
      return {RollAction::kNone, found->version, "it serves"};
    case VersionState::kReady:
    case VersionState::kOffered:
      return {RollAction::kSwitch, found->version, why};
    case VersionState::kDraining:
      return {RollAction::kSwitch, found->version, "it is wanted again and still loaded"};
    case VersionState::kLoading:
    case VersionState::kFailed:
      break;
  }
  return DecideLoad(now, wanted.version, why, versions);
}

std::optional<RollDecision> DecidePinned(absl::Duration now, const Statuses& versions, const Names& pinned) {
  const bool serves = std::any_of(versions.begin(), versions.end(),
                                  [](const VersionStatus& status) { return status.state == VersionState::kServing; });
  if (!serves) return std::nullopt;
  for (const std::string& version : pinned) {
    const VersionStatus* const found = Find(versions, version);
    if (found != nullptr && (found->state == VersionState::kReady || found->state == VersionState::kDraining)) {
      const auto waiting = DecideWaiting(now, *found, versions);
      if (!waiting) return RollDecision{RollAction::kOffer, version, "it is pinned"};
      if (waiting->action == RollAction::kLoad) return waiting;
      continue;
    }
    if (found != nullptr && found->state != VersionState::kFailed) continue;
    const RollDecision load = DecideLoad(now, version, "it is pinned", versions);
    if (load.action == RollAction::kLoad) return load;
  }
  return std::nullopt;
}

}  // namespace

RollDecision DecideRoll(absl::Duration now, const std::optional<ServingChoice>& wanted, const Statuses& versions,
                        const Names& pinned) {
  if (auto leaving = DecideLeaving(now, wanted, versions, pinned)) return *leaving;
  if (!wanted) return {RollAction::kNone, "", "no version is wanted"};
  RollDecision decision = DecideWanted(now, *wanted, versions);
  if (decision.action != RollAction::kNone && decision.action != RollAction::kWait) return decision;
  if (auto also = DecidePinned(now, versions, pinned)) return *also;
  return decision;
}

std::string DescribeMissing(const ServerNeeds& needs) {
  if (needs.missing.empty()) return "";
  std::string named;
  for (size_t i = 0; i < std::min(needs.missing.size(), kNamedNetworks); ++i) {
    const int32_t network = needs.missing[i];
    named += i == 0 ? "" : ", ";
    named += network == kRouterNetwork ? "router network" : fmt::format("expert {}", network);
  }
  if (needs.missing.size() > kNamedNetworks)
    named += fmt::format(" and {} more", needs.missing.size() - kNamedNetworks);
  std::string text =
      fmt::format("{} of its {} networks are on no expert server: {}", needs.missing.size(), needs.networks, named);
  if (needs.bytes_lacking > 0) {
    text += fmt::format("; it needs {} bytes of the servers' memory, and {} of them do not fit", needs.bytes_needed,
                        needs.bytes_lacking);
  }
  if (!needs.why.empty()) text += fmt::format(" ({})", needs.why);
  return text;
}

bool Replaces(const ServingChoice& sent, const std::optional<ServingChoice>& known, bool first) {
  return !known || sent.generation > known->generation || (first && sent != *known);
}

}  // namespace atl::router
