#include "coordinator/jobs/storage_access.h"

#include <string>
#include <vector>

#include "common/spec/frozen.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"

namespace atl::jobs {
namespace {

// A spec names files: what ends like a folder, or lies elsewhere, opens nothing.
void AddFile(const std::string& uri, std::string_view root, spec::StorageGrant* access) {
  if (uri.starts_with(fmt::format("{}/", root)) && !uri.ends_with('/')) access->reads.push_back(uri);
}

}  // namespace

spec::StorageGrant StorageAccessOf(const spec::TaskGrant& grant, std::string_view root) {
  spec::StorageGrant access;
  const std::string& manifest = grant.dataset_manifest_uri;
  // ".atoll/": how files are created once here; the epochs: whether this is the coordinator's store.
  access.reads = {fmt::format("{}/.atoll/", root), fmt::format("{}/coordinator/epochs/", root),
                  manifest.substr(0, manifest.rfind('/') + 1), fmt::format("{}/jobs/{}/", root, grant.job_id)};
  access.writes = {grant.write_prefix + "/"};
  const bool publishes = grant.kind == spec::TaskKind::kPublish;
  if (publishes) {
    access.writes.push_back(fmt::format("{}/models/{}/{}/", root, grant.spec.model_name, grant.job_id));
  }
  if (IsTraining(grant.kind)) access.writes.push_back(fmt::format("{}/profiles/", root));
  if (IsTraining(grant.kind) && !grant.spec.frozen.empty()) {
    access.writes.push_back(fmt::format("{}/plans/", root));
    access.writes.push_back(fmt::format("{}/frozen/", root));
  }
  if (IsTraining(grant.kind) || publishes) {
    for (const std::string& file : spec::FrozenFiles(grant.spec.frozen)) AddFile(file, root, &access);
  }
  if (grant.kind == spec::TaskKind::kFeaturize) AddFile(grant.spec.features.encoder_uri, root, &access);
  return access;
}

}  // namespace atl::jobs
