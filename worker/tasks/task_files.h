// Functions that the tasks share: finding their inputs by kind, and writing files that become artifacts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/spec/task.h"
#include "common/storage/safetensors.h"
#include "worker/tasks/task.h"

namespace atl::tasks {

// Returns ABORTED (TASK_CANCELLED) once the context's `cancelled` returns true.
absl::Status CheckCancelled(const TaskContext& context);

// Reports volatile progress, `done` of `total`.
void Report(const TaskContext& context, int64_t done, int64_t total);

// Returns the i-th shard of split "train", to which task index i refers. INVALID_ARGUMENT if there is none.
absl::StatusOr<dataset::Shard> TrainingShard(const dataset::DatasetManifest& manifest, int32_t index);

// Returns the artifact called `name` of the input task (kind, index). INVALID_ARGUMENT (TASK_INPUT_MISSING) names it.
absl::StatusOr<spec::Artifact> FindInput(const spec::TaskGrant& grant, spec::TaskKind kind, int32_t index,
                                         std::string_view name);
// Returns all artifacts called `name` of inputs of that kind, by index: 0, 1, … without a gap.
absl::StatusOr<std::vector<spec::Artifact>> FindInputs(const spec::TaskGrant& grant, spec::TaskKind kind,
                                                       std::string_view name);

// Returns the URI of a file of this attempt.
std::string OutputUri(const TaskContext& context, std::string_view file_name);

// Writes a safetensors file and returns its description.
absl::StatusOr<spec::Artifact> WriteTensors(const TaskContext& context, std::string_view artifact_name,
                                            std::vector<storage::TensorView> tensors,
                                            const std::map<std::string, std::string>& metadata, int64_t rows);

// A float32 matrix of a parsed file, checked. DATA_LOSS names file and tensor.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;
};
absl::StatusOr<Matrix> ReadMatrix(const storage::Safetensors& file, std::string_view tensor,
                                  std::string_view file_name);

// Returns a float32 matrix as a tensor to write; borrows `values`.
storage::TensorView MatrixView(std::string name, int64_t rows, int64_t columns, const std::vector<float>& values);

}  // namespace atl::tasks
