#include "tests/scale/filled_store.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/storage/blob_store.h"
#include "coordinator/core/epoch.h"
#include "coordinator/jobs/task_graph.h"
#include "coordinator/leases/attempt_secret.h"
#include "coordinator/store/sqlite_store.h"
#include "fmt/format.h"

namespace atl::scale {
namespace {

constexpr int kShards = 4;
constexpr int kJobsPerTransaction = 250;
constexpr int64_t kEpoch = 1;  // of the first store that ever used a blob store
const absl::Time kSubmitted = absl::FromUnixSeconds(1'700'000'000);

jobs::JobRecord NewJob(int job, const StoreShape& shape) {
  jobs::JobRecord record;
  record.job.job_id = JobIdAt(job);
  spec::JobSpec& spec = record.job.spec;
  spec.model_name = fmt::format("model-{}", job % 100);
  spec.dataset = "patterns";
  spec.experts = shape.experts_per_job;
  spec.seed = static_cast<uint64_t>(job);
  spec.features.kind = "pixels_pca";
  spec.training.steps = 1'000'000;
  spec.training.keep_checkpoints = 2;
  spec.router_training = spec.training;
  spec.failure_budget = shape.failure_budget;
  record.job.create_time = kSubmitted;
  record.job.dataset_manifest_uri = "file:///b/datasets/patterns/manifest.json";
  record.tasks = jobs::ExpandTasks(record.job.job_id, spec, kShards);
  return record;
}

std::string SecretAt(int island) {
  return fmt::format("{:016x}", island);
}

// Everything but the experts is done, and the first `leased` experts belong to islands from `first_island` on.
std::vector<store::AttemptRow> StartTraining(jobs::JobRecord& record, int leased, int first_island) {
  std::vector<store::AttemptRow> attempts;
  record.job.state = jobs::JobState::kRunning;
  for (jobs::Task& task : record.tasks) {
    if (task.kind == spec::TaskKind::kPublish) continue;
    if (task.kind != spec::TaskKind::kTrainExpert) {
      task.state = jobs::TaskState::kSucceeded;
      task.attempt = 1;
      task.outputs = {{"made", fmt::format("file:///b/jobs/{}/1-1/made", task.task_id), 4096, std::string(64, 'a'), 0}};
      continue;
    }
    task.state = jobs::TaskState::kReady;
    if (static_cast<int>(attempts.size()) == leased) continue;
    const int island = first_island + static_cast<int>(attempts.size());
    task.state = jobs::TaskState::kLeased;
    task.attempt = 1;
    task.island_id = IslandIdAt(island);
    store::AttemptRow& row = attempts.emplace_back();
    row.task_id = task.task_id;
    row.attempt = 1;
    row.store_epoch = kEpoch;
    row.island_id = task.island_id;
    row.incarnation = 1;
    row.secret_sha256 = leases::SecretHash(SecretAt(island));
    row.start_time = kSubmitted;
  }
  return attempts;
}

leases::Island IslandRow(int island) {
  leases::Island row;
  row.island_id = IslandIdAt(island);
  row.incarnation = 1;
  row.request_id = StartOf(island);
  row.capabilities.build = "scale";
  row.capabilities.device_kind = "cpu";
  return row;
}

absl::Status WriteJob(store::Transaction& transaction, jobs::JobRecord record,
                      const std::vector<store::AttemptRow>& attempts) {
  ATOLL_ASSIGN_OR_RETURN(record.job.revision, transaction.NextRevision());
  ATOLL_RETURN_IF_ERROR(transaction.InsertJob(record));
  if (record.job.state == jobs::JobState::kPending) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(transaction.UpdateJob(record.job));
  for (const jobs::Task& task : record.tasks) ATOLL_RETURN_IF_ERROR(transaction.UpdateTask(task));
  for (const store::AttemptRow& attempt : attempts) ATOLL_RETURN_IF_ERROR(transaction.InsertAttempt(attempt));
  return absl::OkStatus();
}

}  // namespace

std::string JobIdAt(int job) {
  return fmt::format("model-{}-{:08x}", job % 100, job);
}

std::string IslandIdAt(int island) {
  return fmt::format("island-{}", island);
}

std::string StartOf(int island) {
  return fmt::format("start-of-{}", island);
}

absl::StatusOr<std::vector<spec::LeaseToken>> FillStore(const std::string& folder, const StoreShape& shape) {
  ATOLL_ASSIGN_OR_RETURN(const auto store, store::SqliteStore::Open({.path = folder + "/store.db"}));
  ATOLL_ASSIGN_OR_RETURN(const auto blobs, storage::BlobStore::Open("file://" + folder + "/blobs"));
  ATOLL_RETURN_IF_ERROR(coordinator::EstablishEpoch(*blobs, *store, /*restored=*/false));
  std::vector<spec::LeaseToken> tokens;
  for (int from = 0; from < shape.jobs; from += kJobsPerTransaction) {
    ATOLL_RETURN_IF_ERROR(store->Write("fill", [&](store::Transaction& transaction) -> absl::Status {
      for (int job = from; job < std::min(shape.jobs, from + kJobsPerTransaction); ++job) {
        jobs::JobRecord record = NewJob(job, shape);
        const int island = static_cast<int>(tokens.size());
        std::vector<store::AttemptRow> attempts;
        if (island < shape.leases) attempts = StartTraining(record, shape.leases - island, island);
        for (const store::AttemptRow& row : attempts) {
          tokens.push_back({row.task_id, row.store_epoch, row.attempt, SecretAt(static_cast<int>(tokens.size()))});
        }
        ATOLL_RETURN_IF_ERROR(WriteJob(transaction, std::move(record), attempts));
      }
      return absl::OkStatus();
    }));
  }
  ATOLL_RETURN_IF_ERROR(store->Write("islands", [&](store::Transaction& transaction) -> absl::Status {
    for (size_t island = 0; island < tokens.size(); ++island) {
      ATOLL_RETURN_IF_ERROR(transaction.PutIsland(IslandRow(static_cast<int>(island)), kSubmitted));
    }
    return absl::OkStatus();
  }));
  return tokens;
}

}  // namespace atl::scale
