#include "coordinator/service/weights_lookup.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/model_index.h"
#include "fmt/format.h"

namespace atl::coordinator {

absl::StatusOr<serving::VersionWeights> LookUpWeights(storage::BlobStore& blobs, const std::string& folder_uri,
                                                      const std::string& digest) {
  const std::string index_uri = folder_uri + "/model_index.json";
  ATOLL_ASSIGN_OR_RETURN(const std::string json, blobs.ReadVerified(index_uri, digest));
  ATOLL_ASSIGN_OR_RETURN(const storage::ModelIndex index, storage::ParseModelIndex(json, index_uri));
  serving::VersionWeights weights;
  for (int32_t network = serving::kRouterNetwork; network < index.experts; ++network) {
    const std::string folder = network == serving::kRouterNetwork ? "router" : fmt::format("expert_{}", network);
    const std::string name = fmt::format("{}/{}", folder, storage::kWeightsFile);
    const auto file = std::find_if(index.files.begin(), index.files.end(),
                                   [&](const storage::CheckpointFile& entry) { return entry.name == name; });
    if (file == index.files.end()) {
      return MakeError(absl::StatusCode::kDataLoss, "MODEL_FILE_MISSING",
                       fmt::format("{}: expected an entry for '{}', found none among {} files", index_uri, name,
                                   index.files.size()));
    }
    weights[network] = file->bytes;
  }
  return weights;
}

}  // namespace atl::coordinator
