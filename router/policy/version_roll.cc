#include "router/policy/version_roll.h"

#include <algorithm>

#include "fmt/format.h"

namespace atl::router {
namespace {

std::optional<RollDecision> DecideDrop(const std::optional<ServingChoice>& wanted,
                                       const std::vector<VersionStatus>& versions) {
  for (const VersionStatus& status : versions) {
    if (wanted && wanted->version == status.version) continue;
    if (status.state == VersionState::kDraining && status.requests == 0) {
      return RollDecision{RollAction::kDrop, status.version, "its last request is done"};
    }
    if (status.state == VersionState::kReady || status.state == VersionState::kFailed) {
      return RollDecision{RollAction::kDrop, status.version, "another version is wanted by now"};
    }
  }
  return std::nullopt;
}

RollDecision DecideLoad(absl::Duration now, const ServingChoice& wanted, const std::vector<VersionStatus>& versions) {
  for (const VersionStatus& status : versions) {
    if (status.state == VersionState::kLoading) {
      return {RollAction::kNone, status.version, "it is loading"};
    }
    if (status.state == VersionState::kFailed && status.version == wanted.version && now < status.retry_at) {
      return {RollAction::kNone, status.version, "it could not be loaded, and another try is not due"};
    }
  }
  return {RollAction::kLoad, wanted.version, fmt::format("generation {} wants it", wanted.generation)};
}

}  // namespace

RollDecision DecideRoll(absl::Duration now, const std::optional<ServingChoice>& wanted,
                        const std::vector<VersionStatus>& versions) {
  if (auto drop = DecideDrop(wanted, versions)) return *drop;
  if (!wanted) return {RollAction::kNone, "", "no version is wanted"};
  const auto found = std::find_if(versions.begin(), versions.end(),
                                  [&](const VersionStatus& status) { return status.version == wanted->version; });
  if (found != versions.end()) {
    switch (found->state) {
      case VersionState::kServing:
        return {RollAction::kNone, found->version, "it serves"};
      case VersionState::kReady:
        return {RollAction::kSwitch, found->version, fmt::format("generation {} wants it", wanted->generation)};
      case VersionState::kDraining:
        return {RollAction::kSwitch, found->version, "it is wanted again and still loaded"};
      case VersionState::kLoading:
      case VersionState::kFailed:
        break;
    }
  }
  return DecideLoad(now, *wanted, versions);
}

bool IsNewer(const std::optional<ServingChoice>& known, const ServingChoice& news) {
  return !known || news.generation > known->generation;
}

}  // namespace atl::router
