// The publish task: turns final checkpoints into one model version in the blob store.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/spec/task.h"
#include "worker/tasks/task.h"

namespace atl::tasks {

// Idempotent: a second run, on any machine, leaves one model and returns the same artifact. FAILED_PRECONDITION
// (MODEL_EXISTS) if the version's folder holds another model.
absl::StatusOr<std::vector<spec::Artifact>> Publish(const TaskContext& context,
                                                    const dataset::DatasetManifest& manifest);

}  // namespace atl::tasks
