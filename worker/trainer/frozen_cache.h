// Outputs of a job's frozen components for all of their possible inputs, computed once and stored in the blob store:
// docs/formats.md, "Kept frozen outputs".
//
// The ranks of an island share the pass. Each computes its own files and skips those that exist, so that an interrupted
// pass resumes. Every batch of a pass has one shape under any plan, so that the bits are equal on the same type of
// processor.
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
  std::string folder;  // a URI, used only for these components over these samples
  int32_t rank = 0;    // this rank, among the `ranks` that share the pass
  int32_t ranks = 1;
  int64_t file_bytes = int64_t{32} << 20;  // least size of a file of a large cache, except the last of its kind
  // Called between batches and between files; an error ends the pass.
  std::function<absl::Status()> interrupted = [] { return absl::OkStatus(); };
  // Blocks until every rank has called it.
  std::function<absl::Status()> meet = [] { return absl::OkStatus(); };
};

// Returns the outputs that this rank's stages read; `store` must outlive it. A damaged file of this rank is computed
// again. Returns the errors of ValidateOptions, model::LoadFrozen, the data, the store, `interrupted` and `meet`.
// Returns UNAVAILABLE (FROZEN_CACHE_DAMAGED), also when outputs are read, if files are missing or have changed since;
// the next attempt repairs them.
absl::StatusOr<std::shared_ptr<const FrozenOutputs>> ObtainFrozenCache(storage::BlobStore* store, TrainingData* data,
                                                                       const FrozenCacheOptions& options);

}  // namespace atl::trainer
