// Whether the island has the coordinator's blob store before it: with another one, or with a folder that is not
// mounted, every task that it claims fails, whoever else could do it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/storage/blob_store.h"

namespace atl::worker {

// FAILED_PRECONDITION (BLOB_STORE_OTHER) where `store` has no file `epoch_uri`, which the coordinator keeps in its own.
// OK where nothing is asked (an empty URI), and where a refusal or the network keeps the answer. Blocks on the store.
absl::Status CheckSameStore(storage::BlobStore& store, const std::string& epoch_uri);

}  // namespace atl::worker
