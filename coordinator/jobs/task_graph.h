// From a validated spec to the tasks of its job (common/spec/task.h draws the graph), and what each task reads and must
// leave behind. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/task.h"
#include "coordinator/jobs/job.h"

namespace atl::jobs {

// "<job>/<kind>" for a task that a job has once, "<job>/<kind>-<index>" for one of many.
std::string TaskId(std::string_view job_id, spec::TaskKind kind, int32_t index);

// "<job>" of a task's id.
std::string_view JobIdOf(std::string_view task_id);

// INVALID_ARGUMENT (JOB_TOO_LARGE) for a job with more files of partitions, one for each expert and training shard,
// than the grants of its last tasks can name: it would train, and never be published.
absl::Status CheckSize(const spec::JobSpec& spec, int32_t training_shards);

// The tasks of a job, dependencies before dependents, READY where nothing is waited for. `spec` is valid (see
// spec::Validate) and `training_shards` at least 1.
std::vector<Task> ExpandTasks(std::string_view job_id, const spec::JobSpec& spec, int32_t training_shards);

// The outputs that `task` reads: those of its dependencies; an expert's training gets its own cluster's only.
std::vector<spec::TaskInput> InputsOf(const JobRecord& record, const Task& task);

// URIs of what a job's partition tasks have put out, by the name of the output.
using PartitionUris = std::map<std::string, std::vector<std::string>, std::less<>>;
PartitionUris PartitionUrisOf(const JobRecord& record);

// The URIs that InputsOf has for a task that trains, out of its job's: for thousands of tasks that wait at once.
std::vector<std::string> InputUrisOf(const PartitionUris& partitions, const Task& task);

// OK when `outputs` hold what the tasks after this kind read, each named once with URI and hash; else INVALID_ARGUMENT,
// reason INVALID_OUTPUTS, naming what is missing or wrong.
absl::Status CheckOutputs(const Task& task, const std::vector<spec::Artifact>& outputs);

// Training tasks run on every rank of an island and commit checkpoints; all others run on its leader alone.
bool IsTraining(spec::TaskKind kind);

}  // namespace atl::jobs
