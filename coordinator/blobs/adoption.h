// Recovers, after a restore, checkpoints that were committed after the backup. Their rows are lost, but their files are
// in the blob store. A manifest is written once and last, so a checkpoint is intact if all files of its manifest have
// their hashes.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "coordinator/core/core.h"

namespace atl::coordinator {

struct Adoption {
  int64_t adopted = 0;  // checkpoints that have a row now
  int64_t broken = 0;   // manifests without a row that are not intact: left unchanged
  int64_t lost = 0;     // rows whose files are no longer intact: given up
};

// Hashes every checkpoint of every training task that can continue. Recovers the checkpoints that are intact, of an
// older epoch than this store, newer in step than its rows, and not from diverged training; then releases collection.
// Does nothing if collection is not held.
// Blocks on the blob store for as long as it takes to read all of it. Not thread-safe: `core` is not served yet. Safe
// to repeat: an error of the blob store ends it, and recovered checkpoints stay. Damaged and missing files are no
// errors but counted and logged. Calls `go_on` before each file; if that returns false, ends with UNAVAILABLE
// (COORDINATOR_STOPPING), as with an error. Empty: never stops early.
absl::StatusOr<Adoption> AdoptCheckpoints(storage::BlobStore& blobs, Core& core, Clock* clock,
                                          const std::function<bool()>& go_on = {});

}  // namespace atl::coordinator
