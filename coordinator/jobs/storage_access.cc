#include "coordinator/jobs/storage_access.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "common/spec/frozen.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"

namespace atl::jobs {

std::string InputsFolder(std::string_view root) {
  return fmt::format("{}/inputs/", root);
}

bool IsInput(std::string_view uri, std::string_view root) {
  const std::string folder = InputsFolder(root);
  if (!uri.starts_with(folder)) return false;
  const auto plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || std::string_view("._-=+").find(c) != std::string::npos;
  };
  const std::vector<std::string> names = absl::StrSplit(std::string(uri.substr(folder.size())), '/');
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return !name.empty() && name != "." && name != ".." && std::all_of(name.begin(), name.end(), plain);
  });
}

spec::StorageGrant StorageAccessOf(const spec::TaskGrant& grant, std::string_view root) {
  spec::StorageGrant access;
  const std::string& manifest = grant.dataset_manifest_uri;
  // The epochs: whether this is the coordinator's store.
  access.reads = {fmt::format("{}/coordinator/epochs/", root), manifest.substr(0, manifest.rfind('/') + 1),
                  fmt::format("{}/jobs/{}/", root, grant.job_id)};
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
  std::vector<std::string> files;
  if (IsTraining(grant.kind) || publishes) files = spec::FrozenFiles(grant.spec.frozen);
  const spec::FeatureSpec& features = grant.spec.features;
  if (grant.kind == spec::TaskKind::kFeaturize && features.kind == "torchscript") files = {features.encoder_uri};
  // Checked at submission too.
  std::copy_if(files.begin(), files.end(), std::back_inserter(access.reads),
               [&](const std::string& uri) { return IsInput(uri, root); });
  return access;
}

}  // namespace atl::jobs
