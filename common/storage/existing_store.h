// Checks that a blob store exists, for programs that only read one. BlobStore::Open would create the folder of a
// mistyped or unmounted local store, and find it empty.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace atl::storage {

// NOT_FOUND, reason BLOB_STORE_NOT_FOUND, names the folder. OK for a remote store, which is checked when it is opened.
absl::Status CheckStoreExists(std::string_view uri);

}  // namespace atl::storage
