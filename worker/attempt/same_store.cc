#include "worker/attempt/same_store.h"

#include <fmt/format.h>

#include "common/base/errors.h"

namespace atl::worker {

absl::Status CheckSameStore(storage::BlobStore& store, const std::string& epoch_uri) {
  if (epoch_uri.empty()) return absl::OkStatus();
  const absl::StatusOr<bool> there = store.Exists(epoch_uri);
  const bool outside = absl::IsInvalidArgument(there.status());
  if (!outside && (!there.ok() || *there)) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "BLOB_STORE_OTHER",
      fmt::format("expected the coordinator's blob store, which has the file {}; found {}, {}", epoch_uri, store.root(),
                  outside ? "another --blob-store" : "which lacks it: is the folder mounted here?"));
}

}  // namespace atl::worker
