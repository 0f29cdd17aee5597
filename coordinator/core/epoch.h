// The store epoch: the first half of every fencing token. It comes from create-once objects in the blob store, so that
// a restored or promoted store never reuses one, and a replaced store detects the newer epoch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "coordinator/store/store.h"

namespace atl::coordinator {

struct EpochHolder {
  int64_t epoch = 0;     // 0: none was ever taken
  std::string store_id;  // of the store that holds the newest epoch
};

// Returns the file of an epoch in the blob store with this root.
std::string EpochUri(std::string_view blob_root, int64_t epoch);

// Returns the newest epoch in the blob store. Blocks on the network.
absl::StatusOr<EpochHolder> NewestEpoch(storage::BlobStore& blobs);

// Gives `store` an epoch if it has none. Gives it a new one if the file is a copy from the past, because it says so or
// because `restored` does: later tokens must not pass, and collection is held. Also gives it a new one after a
// promotion. FAILED_PRECONDITION: STORE_SUPERSEDED if another store has since taken a higher epoch in this blob store,
// STORE_EMPTY if this store is new and the blob store is not, BLOB_STORE_UNKNOWN if the store's epoch was not taken in
// this blob store.
absl::Status EstablishEpoch(storage::BlobStore& blobs, store::Store& store, bool restored);

// Checked before adoption, which gives up every checkpoint that it does not find: FAILED_PRECONDITION
// (BLOB_STORE_UNKNOWN) if the store's epoch was not taken in this blob store.
absl::Status CheckRanHere(storage::BlobStore& blobs, const store::Store& store);

}  // namespace atl::coordinator
