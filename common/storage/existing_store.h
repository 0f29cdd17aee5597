// Whether a blob store is there, for who only reads one: BlobStore::Open makes the folder of a local store, and one
// that was mistyped, or is not mounted, would be an empty one.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace atl::storage {

// NOT_FOUND, reason BLOB_STORE_NOT_FOUND, names the folder. OK of a store that is elsewhere: opening it tells.
absl::Status CheckStoreExists(std::string_view uri);

}  // namespace atl::storage
