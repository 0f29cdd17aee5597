// The tasks that one process runs alone (the leader of an island): features, clustering, partitions, publishing.
// Training runs on every rank: worker/attempt.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/task.h"
#include "common/storage/blob_store.h"

namespace atl::tasks {

struct TaskContext {
  spec::TaskGrant grant;
  storage::BlobStore* store = nullptr;
  int32_t threads = 1;
  std::string device = "cpu";  // where features are clustered
  // Volatile progress; may be called often.
  std::function<void(const spec::Progress&)> report;
  // Polled between batches: a task that sees true ends with ABORTED.
  std::function<bool()> cancelled;
};

// Runs any task but training and returns its artifacts. Writes below grant.write_prefix only (publish writes the
// model folder as well). Deterministic by the job's seed: running it twice writes the same bytes.
// INVALID_ARGUMENT and DATA_LOSS are permanent; anything else may be tried again.
absl::StatusOr<std::vector<spec::Artifact>> RunTask(const TaskContext& context);

}  // namespace atl::tasks
