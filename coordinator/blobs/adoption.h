// After a restore: takes checkpoints back that were committed after the backup. Their rows are lost, but their files
// lie in the blob store: a manifest is written once and last, so one whose files all have their hashes is a whole
// checkpoint.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "coordinator/core/core.h"

namespace atl::coordinator {

struct Adoption {
  int64_t adopted = 0;  // checkpoints that have a row now
  int64_t broken = 0;   // manifests without a row that are not whole: left as they are
  int64_t lost = 0;     // rows whose files are not whole any more: given up
};

// Hashes every checkpoint of every training task that can go on, takes back those that are whole, older in epoch than
// this store, newer in step than what it knows, and not of a training that diverged, and releases collection. Does
// nothing where collection is not held.
// Blocks on the blob store for as long as reading all of it takes. Not thread-safe: `core` is not served yet.
// Safe to repeat: an error of the blob store ends it, and what was taken back by then stays. Damaged and absent files
// are no errors but counted and logged. `go_on` is asked before each file; once it says false this ends with
// UNAVAILABLE (COORDINATOR_STOPPING), as with an error. Empty: to the end.
absl::StatusOr<Adoption> AdoptCheckpoints(storage::BlobStore& blobs, Core& core, Clock* clock,
                                          const std::function<bool()>& go_on = {});

}  // namespace atl::coordinator
