// The tasks that compute features: fit_features and featurize. The implementation uses LibTorch.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/spec/task.h"
#include "worker/tasks/task.h"

namespace atl::tasks {

absl::StatusOr<std::vector<spec::Artifact>> FitFeatures(const TaskContext& context,
                                                        const dataset::DatasetManifest& manifest);
absl::StatusOr<std::vector<spec::Artifact>> Featurize(const TaskContext& context,
                                                      const dataset::DatasetManifest& manifest);

}  // namespace atl::tasks
