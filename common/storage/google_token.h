// Access tokens for Google's storage, which Arrow does not expose.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"

namespace atl::storage {

// Returns a token that reads and writes objects: of the service account whose key file GOOGLE_APPLICATION_CREDENTIALS
// names, or else of this machine, from the metadata server (GCE_METADATA_HOST, if it is set). FAILED_PRECONDITION
// (GOOGLE_CREDENTIALS) for another kind of file; UNAVAILABLE (STORE_UNAVAILABLE) if no token is returned. Blocks.
absl::StatusOr<std::string> GoogleToken(const RemoteOptions& options);

}  // namespace atl::storage
