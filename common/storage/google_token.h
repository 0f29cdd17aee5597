// Access tokens for Google's storage, of which Arrow shows none.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"

namespace atl::storage {

// A token that reads and writes objects: of the service account whose key file GOOGLE_APPLICATION_CREDENTIALS names, or
// else of this machine's, from the metadata server (GCE_METADATA_HOST, if it is set). FAILED_PRECONDITION
// (GOOGLE_CREDENTIALS) for another kind of file; UNAVAILABLE (STORE_UNAVAILABLE) where none is given. Blocks.
absl::StatusOr<std::string> GoogleToken(const RemoteOptions& options);

}  // namespace atl::storage
