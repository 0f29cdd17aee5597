#include "worker/tasks/task_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::tasks {

absl::Status CheckCancelled(const TaskContext& context) {
  if (!context.cancelled || !context.cancelled()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, "TASK_CANCELLED",
                   fmt::format("task {}: its lease was lost or its job cancelled", context.grant.token.task_id));
}

void Report(const TaskContext& context, int64_t done, int64_t total) {
  if (!context.report) return;
  spec::Progress progress;
  progress.step = done;
  progress.total_steps = total;
  context.report(progress);
}

absl::StatusOr<dataset::Shard> TrainingShard(const dataset::DatasetManifest& manifest, int32_t index) {
  std::vector<dataset::Shard> shards = dataset::ShardsOf(manifest, "train");
  if (index < 0 || static_cast<size_t>(index) >= shards.size()) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "SHARD_OUT_OF_RANGE",
        fmt::format("dataset {}: expected a training shard below {}, found {}", manifest.name, shards.size(), index));
  }
  return std::move(shards[index]);
}

absl::StatusOr<spec::Artifact> FindInput(const spec::TaskGrant& grant, spec::TaskKind kind, int32_t index,
                                         std::string_view name) {
  for (const spec::TaskInput& input : grant.inputs) {
    if (input.kind != kind || input.index != index) continue;
    for (const spec::Artifact& artifact : input.artifacts) {
      if (artifact.name == name) return artifact;
    }
  }
  return MakeError(absl::StatusCode::kInvalidArgument, "TASK_INPUT_MISSING",
                   fmt::format("task {}: expected an input '{}' of {} {}, found none", grant.token.task_id, name,
                               spec::ToString(kind), index));
}

absl::StatusOr<std::vector<spec::Artifact>> FindInputs(const spec::TaskGrant& grant, spec::TaskKind kind,
                                                       std::string_view name) {
  const auto count =
      std::count_if(grant.inputs.begin(), grant.inputs.end(), [&](const auto& input) { return input.kind == kind; });
  std::vector<spec::Artifact> artifacts;
  for (int32_t index = 0; index < count; ++index) {
    ATOLL_ASSIGN_OR_RETURN(spec::Artifact artifact, FindInput(grant, kind, index, name));
    artifacts.push_back(std::move(artifact));
  }
  return artifacts;
}

std::string OutputUri(const TaskContext& context, std::string_view file_name) {
  const std::string& prefix = context.grant.write_prefix;
  return fmt::format("{}{}{}", prefix, prefix.ends_with('/') ? "" : "/", file_name);
}

absl::StatusOr<spec::Artifact> WriteTensors(const TaskContext& context, std::string_view artifact_name,
                                            std::vector<storage::TensorView> tensors,
                                            const std::map<std::string, std::string>& metadata, int64_t rows) {
  ATOLL_ASSIGN_OR_RETURN(const std::string bytes, storage::SerializeSafetensors(std::move(tensors), metadata));
  ATOLL_ASSIGN_OR_RETURN(const storage::WrittenFile file,
                         context.store->Write(OutputUri(context, fmt::format("{}.safetensors", artifact_name)), bytes));
  return spec::Artifact{std::string(artifact_name), file.uri, file.bytes, file.sha256, rows};
}

absl::StatusOr<Matrix> ReadMatrix(const storage::Safetensors& file, std::string_view tensor,
                                  std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const storage::TensorView view, file.Find(tensor));
  if (view.dtype != "F32" || view.shape.size() != 2) {
    return MakeError(absl::StatusCode::kDataLoss, "TENSOR_SHAPE",
                     fmt::format("{}: tensor {}: expected F32 with 2 dimensions, found {} with {}", file_name, tensor,
                                 view.dtype, view.shape.size()));
  }
  Matrix matrix{view.shape[0], view.shape[1], std::vector<float>(view.bytes.size() / sizeof(float))};
  if (!matrix.values.empty()) std::memcpy(matrix.values.data(), view.bytes.data(), view.bytes.size());
  return matrix;
}

storage::TensorView MatrixView(std::string name, int64_t rows, int64_t columns, const std::vector<float>& values) {
  return {std::move(name),
          "F32",
          {rows, columns},
          std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
}

}  // namespace atl::tasks
