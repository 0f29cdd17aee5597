// Outputs of a job's frozen components, computed once over everything that they can be asked for, and kept in the blob
// store: docs/formats.md, "Kept frozen outputs".
//
// The ranks of an island share the pass: each computes files of its own and none that is there already, so that a pass
// that was cut off goes on where it was. Every batch of a pass has one shape, whatever the plan: the same bits on the
// same type of processor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "worker/trainer/trainer.h"

namespace atl::trainer {

struct FrozenCacheOptions {
  TrainerOptions trainer;
  std::string folder;  // a URI, of these components over these samples alone
  int32_t rank = 0;    // that this is, of the `ranks` that share the pass
  int32_t ranks = 1;
  int64_t file_bytes = int64_t{32} << 20;  // least size of a file of a large cache, but for the last of its kind
  // Asked between batches and between files; its error ends the pass.
  std::function<absl::Status()> interrupted = [] { return absl::OkStatus(); };
  // Returns when every rank has called it.
  std::function<absl::Status()> meet = [] { return absl::OkStatus(); };
};

// What this rank's stages read outputs from; `store` must outlive it. A file of this rank's that is damaged is computed
// again. Errors of ValidateOptions, model::LoadFrozen, the data, the store, `interrupted` and `meet`; UNAVAILABLE
// (FROZEN_CACHE_DAMAGED), also when outputs are read, for files that have gone or changed since: the next attempt mends
// them.
absl::StatusOr<std::shared_ptr<const FrozenOutputs>> ObtainFrozenCache(storage::BlobStore* store, TrainingData* data,
                                                                       const FrozenCacheOptions& options);

}  // namespace atl::trainer
