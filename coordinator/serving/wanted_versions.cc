#include "coordinator/serving/wanted_versions.h"

#include <algorithm>
#include <optional>

namespace atl::serving {
namespace {

std::optional<WantedVersion> Decide(const PublishedModel& model, const PublishedVersion& version,
                                    const VersionFacts& facts) {
  const VersionName name{model.name, version.version};
  WantedVersion wanted{.model = model.name, .version = version};
  const bool in_use = facts.in_use.contains(name);
  if (version.version == model.serving || facts.pinned.contains(name)) {
    wanted.role = in_use ? VersionRole::kStays : VersionRole::kComes;
    return wanted;
  }
  wanted.role = VersionRole::kLeaves;
  if (in_use) return wanted;
  // Routers that have gone over to the serving version say what else they use.
  const bool rolled = facts.rolled.contains(model.name) || facts.in_use.contains({model.name, model.serving});
  if (rolled || !facts.hosted.contains(version.digest)) return std::nullopt;
  return wanted;
}

}  // namespace

std::vector<WantedVersion> DecideWanted(std::span<const PublishedModel> models, const VersionFacts& facts) {
  std::vector<WantedVersion> all;
  for (const PublishedModel& model : models) {
    std::vector<WantedVersion> wanted;
    for (const PublishedVersion& version : model.versions) {
      if (std::optional<WantedVersion> one = Decide(model, version, facts)) wanted.push_back(*std::move(one));
    }
    const bool rolls = std::any_of(wanted.begin(), wanted.end(),
                                   [](const WantedVersion& one) { return one.role == VersionRole::kLeaves; });
    for (WantedVersion& one : wanted) {
      // With nothing to take from, it need not wait until all of it fits.
      if (!rolls && one.role == VersionRole::kComes) one.role = VersionRole::kStays;
      all.push_back(std::move(one));
    }
  }
  return all;
}

}  // namespace atl::serving
