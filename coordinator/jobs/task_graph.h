// Expands a validated spec into the tasks of its job (common/spec/task.h draws the graph), and knows the inputs and
// required outputs of each task. Pure.
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

// "<job>/<kind>" for a task that a job has once, "<job>/<kind>-<index>" for repeated ones.
std::string TaskId(std::string_view job_id, spec::TaskKind kind, int32_t index);

// The "<job>" part of a task's id.
std::string_view JobIdOf(std::string_view task_id);

// Rejects a job with more partition files, one for each expert and training shard, than the grants of its last tasks
// can name, because it would train but never publish. INVALID_ARGUMENT (JOB_TOO_LARGE).
absl::Status CheckSize(const spec::JobSpec& spec, int32_t training_shards);

// Returns the tasks of a job, dependencies before dependents; tasks without dependencies are READY. `spec` is valid
// (see spec::Validate) and `training_shards` at least 1.
std::vector<Task> ExpandTasks(std::string_view job_id, const spec::JobSpec& spec, int32_t training_shards);

// Returns the outputs that `task` reads: those of its dependencies. An expert's training gets only its own cluster's.
std::vector<spec::TaskInput> InputsOf(const JobRecord& record, const Task& task);

// URIs of the outputs of a job's partition tasks, by the name of the output.
using PartitionUris = std::map<std::string, std::vector<std::string>, std::less<>>;
PartitionUris PartitionUrisOf(const JobRecord& record);

// Returns the URIs that InputsOf has for a training task, from `partitions` of its job: fast for thousands of waiting
// tasks.
std::vector<std::string> InputUrisOf(const PartitionUris& partitions, const Task& task);

// Returns OK if `outputs` hold everything that the tasks after this kind read, each named once with URI and hash.
// Otherwise INVALID_ARGUMENT (INVALID_OUTPUTS) names the missing or wrong output.
absl::Status CheckOutputs(const Task& task, const std::vector<spec::Artifact>& outputs);

// Training tasks run on every rank of an island and commit checkpoints; all others run only on its leader.
bool IsTraining(spec::TaskKind kind);

}  // namespace atl::jobs
