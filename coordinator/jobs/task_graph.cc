#include "coordinator/jobs/task_graph.h"

#include <algorithm>
#include <set>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::jobs {
namespace {

using spec::TaskKind;

// A grant, or a job with all of its tasks, is one message of 64 MiB at most: of 400 bytes for each file.
constexpr int64_t kMostPartitionFiles = 150'000;

bool OncePerJob(TaskKind kind) {
  return kind == TaskKind::kFitFeatures || kind == TaskKind::kCluster || kind == TaskKind::kTrainRouter ||
         kind == TaskKind::kPublish;
}

// Adds tasks of one job in dependency order.
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string_view job_id) : job_id_(job_id) {}

  std::string Add(TaskKind kind, int32_t index, std::vector<std::string> depends_on) {
    Task task;
    task.task_id = TaskId(job_id_, kind, index);
    task.kind = kind;
    task.index = index;
    task.state = depends_on.empty() ? TaskState::kReady : TaskState::kBlocked;
    task.depends_on = std::move(depends_on);
    tasks_.push_back(std::move(task));
    return tasks_.back().task_id;
  }

  std::vector<std::string> AddMany(TaskKind kind, int32_t count, const std::vector<std::string>& depends_on) {
    std::vector<std::string> ids;
    for (int32_t i = 0; i < count; ++i) ids.push_back(Add(kind, i, depends_on));
    return ids;
  }

  std::vector<Task> Take() { return std::move(tasks_); }

 private:
  const std::string job_id_;
  std::vector<Task> tasks_;
};

// The one artifact without which no later task can run; empty for a partition, which may be left without samples.
std::string_view RequiredOutput(TaskKind kind) {
  switch (kind) {
    case TaskKind::kFitFeatures:
      return "pca";
    case TaskKind::kFeaturize:
      return "features";
    case TaskKind::kCluster:
      return "centroids";
    case TaskKind::kPartition:
      return "";
    case TaskKind::kTrainExpert:
    case TaskKind::kTrainRouter:
      return "checkpoint";
    case TaskKind::kPublish:
      return "model_index";
  }
  return "";
}

// The output of a partition task that an expert's training reads.
std::string OwnPartition(const Task& task) {
  return fmt::format("partition/{}", task.index);
}

bool IsSha256(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

absl::Status BadOutputs(const Task& task, std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_OUTPUTS",
                   fmt::format("outputs of task {}: {}", task.task_id, what));
}

}  // namespace

bool IsTraining(TaskKind kind) {
  return kind == TaskKind::kTrainExpert || kind == TaskKind::kTrainRouter;
}

std::string TaskId(std::string_view job_id, TaskKind kind, int32_t index) {
  if (OncePerJob(kind)) return fmt::format("{}/{}", job_id, spec::ToString(kind));
  return fmt::format("{}/{}-{}", job_id, spec::ToString(kind), index);
}

std::string_view JobIdOf(std::string_view task_id) {
  return task_id.substr(0, task_id.find('/'));
}

absl::Status CheckSize(const spec::JobSpec& spec, int32_t training_shards) {
  const int64_t files = int64_t{spec.experts} * training_shards;
  if (files <= kMostPartitionFiles) return absl::OkStatus();
  return FieldError("experts", "JOB_TOO_LARGE",
                    fmt::format("expected experts x training shards of the dataset of at most {}, found {} x {}; fewer "
                                "experts, or a dataset of larger shards, work",
                                kMostPartitionFiles, spec.experts, training_shards));
}

std::vector<Task> ExpandTasks(std::string_view job_id, const spec::JobSpec& spec, int32_t training_shards) {
  GraphBuilder graph(job_id);
  std::vector<std::string> before_featurize;
  if (spec.features.kind == "pixels_pca") before_featurize.push_back(graph.Add(TaskKind::kFitFeatures, 0, {}));
  const auto featurize = graph.AddMany(TaskKind::kFeaturize, training_shards, before_featurize);
  const auto cluster = graph.Add(TaskKind::kCluster, 0, featurize);
  std::vector<std::string> partitions;
  for (int32_t i = 0; i < training_shards; ++i) {
    partitions.push_back(graph.Add(TaskKind::kPartition, i, {featurize[i], cluster}));
  }
  std::vector<std::string> before_publish = graph.AddMany(TaskKind::kTrainExpert, spec.experts, partitions);
  before_publish.push_back(graph.Add(TaskKind::kTrainRouter, 0, partitions));
  // Publishing reads the partitions as well: how many samples each expert saw is part of the model.
  before_publish.insert(before_publish.end(), partitions.begin(), partitions.end());
  graph.Add(TaskKind::kPublish, 0, std::move(before_publish));
  return graph.Take();
}

PartitionUris PartitionUrisOf(const JobRecord& record) {
  PartitionUris uris;
  for (const Task& task : record.tasks) {
    if (task.kind != TaskKind::kPartition) continue;
    for (const spec::Artifact& artifact : task.outputs) uris[artifact.name].push_back(artifact.uri);
  }
  return uris;
}

std::vector<std::string> InputUrisOf(const PartitionUris& partitions, const Task& task) {
  std::vector<std::string> uris;
  if (task.kind == TaskKind::kTrainExpert) {
    const auto own = partitions.find(OwnPartition(task));
    if (own != partitions.end()) uris = own->second;
  } else if (task.kind == TaskKind::kTrainRouter) {
    for (const auto& [name, more] : partitions) uris.insert(uris.end(), more.begin(), more.end());
  }
  return uris;
}

std::vector<spec::TaskInput> InputsOf(const JobRecord& record, const Task& task) {
  const std::set<std::string_view> wanted(task.depends_on.begin(), task.depends_on.end());
  const std::string own_partition = OwnPartition(task);
  std::vector<spec::TaskInput> inputs;
  for (const Task& source : record.tasks) {
    if (!wanted.contains(source.task_id)) continue;
    spec::TaskInput input{source.task_id, source.kind, source.index, {}};
    for (const spec::Artifact& artifact : source.outputs) {
      if (task.kind == TaskKind::kTrainExpert && artifact.name != own_partition) continue;
      input.artifacts.push_back(artifact);
    }
    inputs.push_back(std::move(input));
  }
  return inputs;
}

absl::Status CheckOutputs(const Task& task, const std::vector<spec::Artifact>& outputs) {
  std::set<std::string_view> names;
  for (const spec::Artifact& artifact : outputs) {
    if (!names.insert(artifact.name).second) {
      return BadOutputs(task, fmt::format("expected every name once, found '{}' twice", artifact.name));
    }
    if (artifact.uri.empty()) return BadOutputs(task, fmt::format("'{}' has no uri", artifact.name));
    if (!IsSha256(artifact.sha256)) {
      return BadOutputs(task, fmt::format("sha256 of '{}': expected 64 lower-case hex digits, found '{}'",
                                          artifact.name, artifact.sha256));
    }
    if (artifact.bytes < 0 || artifact.rows < 0) {
      return BadOutputs(task, fmt::format("'{}' has {} bytes and {} rows, expected at least 0", artifact.name,
                                          artifact.bytes, artifact.rows));
    }
  }
  const std::string_view required = RequiredOutput(task.kind);
  if (!required.empty() && !names.contains(required)) {
    return BadOutputs(task, fmt::format("expected an artifact named '{}', found {}", required, outputs.size()));
  }
  return absl::OkStatus();
}

}  // namespace atl::jobs
