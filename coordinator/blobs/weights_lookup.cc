#include "coordinator/blobs/weights_lookup.h"

#include "common/base/network_id.h"
#include "common/base/status_macros.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_index.h"

namespace atl::coordinator {

absl::StatusOr<serving::VersionWeights> LookUpWeights(storage::BlobStore& blobs, const std::string& folder_uri,
                                                      const std::string& digest) {
  const std::string index_uri = folder_uri + "/model_index.json";
  ATOLL_ASSIGN_OR_RETURN(const std::string json, blobs.ReadVerified(index_uri, digest));
  ATOLL_ASSIGN_OR_RETURN(const storage::ModelIndex index, storage::ParseModelIndex(json, index_uri));
  serving::VersionWeights weights;
  for (int32_t network = kRouterNetwork; network < index.experts; ++network) {
    ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointFile file,
                           storage::FindNetworkFile(index, folder_uri, network, storage::kWeightsFile));
    weights[network] = file.bytes;
  }
  return weights;
}

}  // namespace atl::coordinator
