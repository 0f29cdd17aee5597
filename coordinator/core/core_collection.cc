// The store's facts for garbage collection, and the rows that collection deletes.
#include <deque>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/jobs/retention.h"
#include "coordinator/jobs/task_graph.h"

namespace atl::coordinator {
namespace {

// How long answers to creating calls are kept for their repetition.
constexpr absl::Duration kAnswerRetention = absl::Hours(24 * 7);

}  // namespace

absl::StatusOr<Core::CollectionFacts> Core::GatherCollectionFacts() {
  CollectionFacts facts;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::CheckpointRow> rows, store_.Checkpoints(""));
  for (const store::CheckpointRow& row : rows) {
    // A checkpoint that is being deleted goes with its row, not as files without a row.
    facts.needed_folders.insert(jobs::FolderOf(row.checkpoint.manifest_uri));
    if (row.state == store::CheckpointState::kDeleting) facts.deleting.push_back(row);
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> uris, store_.ArtifactUris());
  facts.needed_files.insert(uris.begin(), uris.end());
  ATOLL_ASSIGN_OR_RETURN(facts.deleted_jobs, store_.DeletedJobs());
  return facts;
}

std::vector<jobs::AttemptFacts> Core::FactsOf(const std::vector<jobs::AttemptFolder>& folders) {
  std::set<std::string, std::less<>> deleted;
  if (const auto jobs = store_.DeletedJobs(); jobs.ok()) {
    for (const store::DeletedJob& job : *jobs) deleted.insert(job.job_id);
  }
  // By job and id: there may be as many files as tasks, and more.
  std::map<std::string, std::map<std::string_view, const jobs::Task*>, std::less<>> tasks;
  std::deque<jobs::JobRecord> ended;
  std::vector<jobs::AttemptFacts> all;
  for (const jobs::AttemptFolder& folder : folders) {
    jobs::AttemptFacts& facts = all.emplace_back();
    const std::string job_id(jobs::JobIdOf(folder.task_id));
    if (deleted.contains(job_id)) {
      facts = {.known = true, .job_deleted = true};
      continue;
    }
    auto of_job = tasks.find(job_id);
    if (of_job == tasks.end()) {
      of_job = tasks.try_emplace(job_id).first;
      const jobs::JobRecord* record = Active(job_id);
      if (record == nullptr) {
        absl::StatusOr<jobs::JobRecord> read = store_.GetJob(job_id);
        if (read.ok()) record = &ended.emplace_back(*std::move(read));
      }
      if (record != nullptr) {
        for (const jobs::Task& task : record->tasks) of_job->second[task.task_id] = &task;
      }
    }
    const auto found = of_job->second.find(folder.task_id);
    if (found == of_job->second.end() || folder.store_epoch > store_.epoch()) continue;
    const jobs::Task* const task = found->second;
    facts.known = true;
    facts.task_over = jobs::IsFinal(task->state);
    // Files from before a restore may be newer than the restored store, so they stay until their task is over.
    facts.superseded = folder.store_epoch >= store_.restored_epoch() &&
                       (folder.store_epoch < store_.epoch() || folder.attempt < task->attempt);
  }
  return all;
}

absl::Status Core::ForgetCheckpoint(std::string_view manifest_uri) {
  return Write("forget_checkpoint", [&](store::Transaction& t) { return t.DeleteCheckpoint(manifest_uri); });
}

absl::Status Core::ForgetDeletedJob(std::string_view job_id) {
  return Write("forget_job", [&](store::Transaction& t) { return t.ForgetDeletedJob(job_id); });
}

absl::Status Core::ForgetOldAnswers() {
  const absl::Time oldest = clock_.Now() - kAnswerRetention;
  return Write("forget_answers", [&](store::Transaction& t) { return t.DeleteAnswersBefore(oldest); });
}

}  // namespace atl::coordinator
