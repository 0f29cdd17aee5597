// The tasks that place samples: cluster finds centroids, partition writes each sample to its cluster's shard.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/spec/task.h"
#include "worker/tasks/task.h"

namespace atl::tasks {

absl::StatusOr<std::vector<spec::Artifact>> Cluster(const TaskContext& context);
absl::StatusOr<std::vector<spec::Artifact>> Partition(const TaskContext& context,
                                                      const dataset::DatasetManifest& manifest);

}  // namespace atl::tasks
