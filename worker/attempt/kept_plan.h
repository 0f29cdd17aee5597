// Stores the plans of tasks with frozen components in the blob store. The number of samples that a frozen layer sees at
// once changes its outputs by rounding. A resumed attempt must therefore run the same pieces as the previous one, or it
// does not continue bit for bit.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/planner/plan.h"
#include "common/spec/task.h"
#include "common/storage/blob_store.h"

namespace atl::worker {

// Stores the plan of this task for this many ranks. Overwrites.
absl::Status KeepPlan(storage::BlobStore* store, const spec::TaskGrant& grant, int32_t ranks,
                      const planner::Plan& plan);

// Returns NOT_FOUND if no plan is stored; DATA_LOSS (HASH_MISMATCH, FILE_MALFORMED) for a damaged file or one that
// holds no plan.
absl::StatusOr<planner::Plan> ReadKeptPlan(storage::BlobStore* store, const spec::TaskGrant& grant, int32_t ranks);

}  // namespace atl::worker
