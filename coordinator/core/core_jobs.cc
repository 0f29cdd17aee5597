// Submitting, cancelling, deleting and reading jobs.
#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

constexpr size_t kJobIdBytes = 4;

absl::Status CheckOwner(const CallKey& key, const jobs::Job& job) {
  if (key.may_change_all_jobs || job.owner == key.caller) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, "JOB_NOT_YOURS",
                   fmt::format("job {} was submitted by '{}': expected that caller or an admin, found '{}'", job.job_id,
                               job.owner, key.caller));
}

}  // namespace

absl::StatusOr<std::string> Core::SubmitJob(const CallKey& key, const spec::JobSpec& spec, const DatasetInfo& dataset,
                                            bool validate_only, const EncodeJob& encode) {
  ATOLL_ASSIGN_OR_RETURN(std::optional<std::string> before, FindAnswer(key));
  if (before && !validate_only) return *std::move(before);
  ATOLL_RETURN_IF_ERROR(spec::Validate(spec, &dataset.facts));
  if (dataset.training_shards < 1) {
    return FieldError(
        "dataset", "DATASET_EMPTY",
        fmt::format("expected at least 1 training shard in '{}', found {}", spec.dataset, dataset.training_shards));
  }
  ATOLL_RETURN_IF_ERROR(jobs::CheckSize(spec, dataset.training_shards));
  ATOLL_RETURN_IF_ERROR(CheckOpenJobs(key));
  jobs::JobRecord record;
  record.job.owner = key.caller;
  record.job.job_id = fmt::format("{}-{}", spec.model_name, RandomHex(kJobIdBytes));
  record.job.spec = spec;
  record.job.dataset_manifest_uri = dataset.manifest_uri;
  record.job.create_time = clock_.Now();
  record.tasks = jobs::ExpandTasks(record.job.job_id, spec, dataset.training_shards);
  if (validate_only) return encode(ViewOf(std::move(record)));

  std::string response;
  ATOLL_RETURN_IF_ERROR(Write("submit_job", [&](store::Transaction& transaction) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(record.job.revision, transaction.NextRevision());
    ATOLL_RETURN_IF_ERROR(transaction.InsertJob(record));
    response = encode(ViewOf(record));
    return RecordAnswer(transaction, key, response);
  }));
  spdlog::info("job {} submitted: {} tasks", record.job.job_id, record.tasks.size());
  metrics_.jobs_submitted->Increment();
  const std::string job_id = record.job.job_id;
  age_of_job_[job_id] = next_age_++;
  active_[job_id] = std::move(record);
  stale_jobs_.insert(job_id);
  JobChanged(job_id);
  return response;
}

absl::Status Core::CheckOpenJobs(const CallKey& key) const {
  if (!key.max_open_jobs) return absl::OkStatus();
  const int64_t open =
      std::ranges::count_if(active_, [&key](const auto& entry) { return entry.second.job.owner == key.caller; });
  if (open < *key.max_open_jobs) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
      fmt::format("'{}' may have {} unfinished jobs at a time, found {}: wait for one to end, or cancel one",
                  key.caller, *key.max_open_jobs, open));
}

absl::StatusOr<std::string> Core::CancelJob(const CallKey& key, std::string_view job_id, std::string_view reason,
                                            const EncodeJob& encode) {
  ATOLL_ASSIGN_OR_RETURN(std::optional<std::string> before, FindAnswer(key));
  if (before) return *std::move(before);
  ATOLL_ASSIGN_OR_RETURN(JobView view, GetJob(job_id));
  ATOLL_RETURN_IF_ERROR(CheckOwner(key, view.record.job));
  ATOLL_ASSIGN_OR_RETURN(const jobs::Effect effect, jobs::Cancel(view.record, reason, clock_.Now()));
  std::string response;
  ATOLL_RETURN_IF_ERROR(
      Apply("cancel_job", view.record, effect, nullptr, [&](store::Transaction& transaction) -> absl::Status {
        ATOLL_ASSIGN_OR_RETURN(view.record.job.revision, transaction.NextRevision());
        response = encode(view);
        return RecordAnswer(transaction, key, response);
      }));
  return response;
}

absl::Status Core::DeleteJob(const CallKey& key, std::string_view job_id) {
  ATOLL_ASSIGN_OR_RETURN(const std::optional<std::string> before, FindAnswer(key));
  if (before) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const JobView view, GetJob(job_id));
  ATOLL_RETURN_IF_ERROR(CheckOwner(key, view.record.job));
  if (!jobs::IsFinal(view.record.job.state)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "JOB_NOT_ENDED",
                     fmt::format("job {} is {}, expected it to have ended; cancel it first", job_id,
                                 jobs::ToString(view.record.job.state)));
  }
  ATOLL_RETURN_IF_ERROR(Write("delete_job", [&](store::Transaction& transaction) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(transaction.DeleteJob(job_id, clock_.Now()));
    return RecordAnswer(transaction, key, "");
  }));
  spdlog::info("job {} deleted", job_id);
  JobChanged(job_id);
  return absl::OkStatus();
}

absl::StatusOr<JobView> Core::GetJob(std::string_view job_id) {
  if (const jobs::JobRecord* record = Active(job_id)) return ViewOf(*record);
  ATOLL_ASSIGN_OR_RETURN(jobs::JobRecord record, store_.GetJob(job_id));
  return ViewOf(std::move(record));
}

absl::StatusOr<store::Store::JobPage> Core::ListJobs(int64_t before, int32_t limit) {
  return store_.ListJobs(before, limit);
}

}  // namespace atl::coordinator
