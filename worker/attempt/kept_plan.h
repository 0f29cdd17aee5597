// The plans of tasks with frozen components, kept in the blob store: how much of the batch a frozen layer sees at once
// changes its outputs by rounding, so that a resumed attempt must run the pieces of the one before to go on bit for
// bit.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/planner/plan.h"
#include "common/spec/task.h"
#include "common/storage/blob_store.h"

namespace atl::worker {

// Of this task, for this many ranks. Overwrites.
absl::Status KeepPlan(storage::BlobStore* store, const spec::TaskGrant& grant, int32_t ranks,
                      const planner::Plan& plan);

// NOT_FOUND when none was kept; DATA_LOSS (HASH_MISMATCH, FILE_MALFORMED) for a file that is damaged or no plan.
absl::StatusOr<planner::Plan> ReadKeptPlan(storage::BlobStore* store, const spec::TaskGrant& grant, int32_t ranks);

}  // namespace atl::worker
