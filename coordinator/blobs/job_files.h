// The files that a job names; their hashes fix their contents at submission.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/spec/spec.h"
#include "common/storage/blob_store.h"

namespace atl::coordinator {

// Reads every file that the valid `spec` names, also in fields that its kinds do not use, and fills in each missing
// SHA-256. INVALID_ARGUMENT (JOB_FILE) names the field and the file if the file is missing, is no input
// (jobs::IsInput), is or lies behind a symbolic link, or does not have the given hash. Blocks on the blob store for as
// long as it takes to read the files. Calls `go_on` before each file and returns CANCELLED if that returns false.
absl::Status FillFileHashes(storage::BlobStore& blobs, const std::function<bool()>& go_on, spec::JobSpec* spec);

}  // namespace atl::coordinator
