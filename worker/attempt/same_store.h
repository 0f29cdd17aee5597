// Checks that the island uses the coordinator's blob store. With another store, or with a folder that is not mounted,
// every task that the island claims fails, although another island could run it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/storage/blob_store.h"

namespace atl::worker {

// Returns FAILED_PRECONDITION (BLOB_STORE_OTHER) if `store` lacks the file `epoch_uri`, which the coordinator keeps in
// its own store. Returns OK if the URI is empty, or if a rejection or the network prevents an answer. Blocks on the
// store.
absl::Status CheckSameStore(storage::BlobStore& store, const std::string& epoch_uri);

}  // namespace atl::worker
