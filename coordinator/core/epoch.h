// The store epoch: the first half of every fencing token, taken from create-once objects in the blob store, so that a
// restored or promoted store never reuses one and a replaced one finds out.
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

// The file of an epoch in the blob store with this root.
std::string EpochUri(std::string_view blob_root, int64_t epoch);

// The newest epoch in the blob store. Blocks on the network.
absl::StatusOr<EpochHolder> NewestEpoch(storage::BlobStore& blobs);

// Gives `store` an epoch when it has none, or a new one when the file is a copy from the past, because it says so or
// because `restored` does: tokens that were granted since must not pass, and collection is held. Also a new one when it
// was promoted. FAILED_PRECONDITION (STORE_SUPERSEDED) when another store took a higher epoch in this blob store since,
// STORE_EMPTY when this one is new and the blob store is not, and BLOB_STORE_UNKNOWN in a blob store that the store's
// epoch was not taken in.
absl::Status EstablishEpoch(storage::BlobStore& blobs, store::Store& store, bool restored);

// Asked before adoption, which gives up every checkpoint that it does not find: FAILED_PRECONDITION
// (BLOB_STORE_UNKNOWN) where the store's epoch was not taken in this blob store.
absl::Status CheckRanHere(storage::BlobStore& blobs, const store::Store& store);

}  // namespace atl::coordinator
