#include "coordinator/blobs/dataset_lookup.h"

#include <algorithm>
#include <set>
#include <string>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/dataset.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::coordinator {
namespace {

constexpr size_t kNamesShown = 20;

// Names of the datasets that there are, for the message.
std::string KnownDatasets(storage::BlobStore& blobs) {
  const std::string root = blobs.UriOf("datasets/");
  const auto files = blobs.List(root);
  if (!files.ok()) return "and the list of datasets cannot be read";
  std::set<std::string> names;
  for (const storage::FileInfo& file : *files) {
    const std::string path = file.uri.substr(root.size());
    const size_t slash = path.find('/');
    if (slash != std::string::npos && path.substr(slash) == "/manifest.json") names.insert(path.substr(0, slash));
  }
  if (names.empty()) return "and there are none yet; import one first";
  std::vector<std::string> shown(names.begin(), names.end());
  const size_t hidden = shown.size() > kNamesShown ? shown.size() - kNamesShown : 0;
  shown.resize(shown.size() - hidden);
  return fmt::format("known: {}{}", fmt::join(shown, ", "), hidden > 0 ? fmt::format(" and {} more", hidden) : "");
}

}  // namespace

absl::StatusOr<DatasetInfo> LookUpDataset(storage::BlobStore& blobs, std::string_view name) {
  DatasetInfo info;
  info.manifest_uri = dataset::DatasetManifestUri(blobs, name);
  const absl::StatusOr<dataset::DatasetManifest> manifest = dataset::ReadDatasetManifest(&blobs, info.manifest_uri);
  if (manifest.status().code() == absl::StatusCode::kNotFound) {
    return MakeError(absl::StatusCode::kNotFound, "DATASET_UNKNOWN",
                     fmt::format("dataset: there is no dataset '{}'; {}", name, KnownDatasets(blobs)));
  }
  ATOLL_RETURN_IF_ERROR(manifest.status());
  info.training_shards = static_cast<int32_t>(std::count_if(manifest->shards.begin(), manifest->shards.end(),
                                                            [](const auto& s) { return s.split == "train"; }));
  info.facts.training_samples = manifest->rows("train");
  info.facts.classes = static_cast<int32_t>(manifest->classes.size());
  info.facts.channels = manifest->channels;
  info.facts.height = manifest->height;
  info.facts.width = manifest->width;
  info.facts.columns = manifest->columns;
  return info;
}

}  // namespace atl::coordinator
