// Rows of the store as structs. Private to coordinator/store.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "coordinator/store/sql_database.h"
#include "coordinator/store/store.h"

namespace atl::store {

// Column lists in the order in which the readers below read them.
inline constexpr std::string_view kJobColumns =
    "job_id, spec, dataset_manifest_uri, state, create_time, end_time, message, model_version, revision, owner";
inline constexpr std::string_view kAttemptColumns =
    "task_id, attempt, store_epoch, island_id, incarnation, secret_sha256, outcome, message, start_time, end_time, "
    "code";
inline constexpr std::string_view kRollbackColumns =
    "task_id, attempt, from_step, to_step, skip_first, skip_steps, reason, message, evidence_uri, time";
inline constexpr std::string_view kCheckpointColumns =
    "task_id, attempt, step, manifest_uri, manifest_sha256, milestone, state, commit_time";
inline constexpr std::string_view kModelVersionColumns = "name, version, job_id, uri, digest, experts, publish_time";
inline constexpr std::string_view kServingColumns = "name, version, generation, change_time, cause";

// Passes every row to `read`, up to the first error.
template <typename Read>
absl::Status ForEachRow(Statement& row, const Read& read) {
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
    if (!found) return absl::OkStatus();
    ATOLL_RETURN_IF_ERROR(read(row));
  }
}

// Reads all rows; `read` makes a value of each.
template <typename Read, typename T = std::invoke_result_t<Read, Statement&>>
absl::StatusOr<std::vector<T>> ReadRows(Statement& row, const Read& read) {
  std::vector<T> rows;
  ATOLL_RETURN_IF_ERROR(ForEachRow(row, [&](Statement& one) {
    rows.push_back(read(one));
    return absl::OkStatus();
  }));
  return rows;
}

absl::StatusOr<jobs::Job> ReadJob(Statement& row);
AttemptRow ReadAttempt(Statement& row);
CheckpointRow ReadCheckpoint(Statement& row);
ModelVersionRow ReadModelVersion(Statement& row);
ServingRow ReadServing(Statement& row);

absl::StatusOr<std::vector<jobs::Task>> ReadTasks(Database& database, std::string_view job_id);
// Returns the oldest first, with their tasks. Needs three statements for any number of jobs, because the start waits
// for it.
absl::StatusOr<std::vector<jobs::JobRecord>> ReadUnfinishedJobs(Database& database);
absl::StatusOr<std::vector<CheckpointRow>> ReadCheckpoints(Database& database, std::string_view task_id);

std::string JoinLines(const std::vector<std::string>& lines);
std::vector<std::string> SplitLines(std::string_view text);

std::string ProgressToJson(const spec::Progress& progress);
// DATA_LOSS (STORE_CORRUPT) for text that ProgressToJson did not write.
absl::StatusOr<spec::Progress> ProgressFromJson(std::string_view json);

std::string CapabilitiesToJson(const leases::Capabilities& capabilities);
// DATA_LOSS (STORE_CORRUPT) for text that CapabilitiesToJson did not write.
absl::StatusOr<leases::Capabilities> CapabilitiesFromJson(std::string_view json);

}  // namespace atl::store
