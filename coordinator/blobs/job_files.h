// The files that a job names, fixed at submission by their hashes.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/spec/spec.h"
#include "common/storage/blob_store.h"

namespace atl::coordinator {

// Reads every file that `spec` names, also in fields that its kinds do not use, and fills in its SHA-256 where it is
// not given. Of a valid spec. INVALID_ARGUMENT (JOB_FILE) names the field, and the file that is not there, is no input
// (jobs::IsInput), is or lies behind a symbolic link, or has another hash than the one given. Blocks on the blob store
// for as long as reading the files takes. CANCELLED once `go_on`, which is asked before each file, says no.
absl::Status FillFileHashes(storage::BlobStore& blobs, const std::function<bool()>& go_on, spec::JobSpec* spec);

}  // namespace atl::coordinator
