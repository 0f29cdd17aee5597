// The tasks that one process, the leader of an island, runs alone: features, clustering, partitions, publishing.
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
  std::string device = "cpu";  // clusters features
  // Reports volatile progress; may be called often.
  std::function<void(const spec::Progress&)> report;
  // Polled between batches; if it returns true, the task ends with ABORTED.
  std::function<bool()> cancelled;
};

// Runs any task except training and returns its artifacts. Writes below grant.write_prefix only (publish also writes
// the model folder). Deterministic by the job's seed: a second run writes the same bytes. INVALID_ARGUMENT and
// DATA_LOSS are permanent; other errors may be retried.
absl::StatusOr<std::vector<spec::Artifact>> RunTask(const TaskContext& context);

}  // namespace atl::tasks
