#include "coordinator/blobs/collector.h"

#include <utility>
#include <vector>

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "coordinator/core/epoch.h"
#include "coordinator/jobs/retention.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

absl::Status Stopped() {
  return MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_STOPPING", "collection stopped");
}

}  // namespace

Collector::Collector(storage::BlobStore* blobs, Clock* clock, WithCore with_core, std::string store_id,
                     CoreMetrics* metrics, CollectorOptions options)
    : blobs_(*blobs),
      clock_(*clock),
      with_core_(std::move(with_core)),
      store_id_(std::move(store_id)),
      metrics_(*metrics),
      options_(options) {
  thread_ = std::thread([this] { Run(); });
}

Collector::~Collector() {
  Stop();
  thread_.join();
}

void Collector::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

absl::Status Collector::CheckRunning() {
  absl::MutexLock lock(&mutex_);
  return stopping_ ? Stopped() : absl::OkStatus();
}

void Collector::Run() {
  absl::Duration next = clock_.Monotonic() + options_.interval;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (clock_.AwaitUntil(&mutex_, absl::Condition(&stopping_), next)) return;
    }
    const absl::Status status = CollectOnce();
    if (!CheckRunning().ok()) return;
    if (!status.ok()) {
      metrics_.collection_failures->Increment();
      spdlog::warn("collection: {}", status.ToString());
      if (options_.superseded && ErrorReason(status) == "STORE_SUPERSEDED") options_.superseded(status);
    }
    next = clock_.Monotonic() + options_.interval;
  }
}

absl::Status Collector::CollectOnce() {
  ATOLL_RETURN_IF_ERROR(CheckRunning());
  ATOLL_RETURN_IF_ERROR(CheckAllowed());
  // Listed first and judged afterwards, in one turn of the core: a file that gets its row in between is then needed.
  Listing listing;
  ATOLL_RETURN_IF_ERROR(List(&listing));
  Core::CollectionFacts facts;
  std::vector<jobs::AttemptFacts> attempts;
  ATOLL_RETURN_IF_ERROR(InCore([&](Core& core) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(facts, core.GatherCollectionFacts());
    attempts = core.FactsOf(listing.folders);
    return absl::OkStatus();
  }));
  for (size_t i = 0; i < listing.files.size(); ++i) listing.files[i].attempt = attempts[i];
  ATOLL_RETURN_IF_ERROR(DeleteCheckpoints(facts.deleting));
  ATOLL_RETURN_IF_ERROR(DeleteFiles(listing.files, facts));
  ATOLL_RETURN_IF_ERROR(ForgetEmptyJobs(facts.deleted_jobs));
  ATOLL_RETURN_IF_ERROR(InCore([](Core& core) { return core.ForgetOldAnswers(); }));
  ATOLL_RETURN_IF_ERROR(InCore([](Core& core) { return core.ForgetSilentIslands(); }));
  metrics_.last_collection_time->Set(absl::ToDoubleSeconds(clock_.Now() - absl::UnixEpoch()));
  return absl::OkStatus();
}

absl::Status Collector::InCore(const std::function<absl::Status(Core&)>& body) {
  absl::Status status = Stopped();
  with_core_([&](Core& core) { status = body(core); });
  return status;
}

absl::Status Collector::CheckAllowed() {
  ATOLL_ASSIGN_OR_RETURN(const EpochHolder newest, NewestEpoch(blobs_));
  if (newest.store_id != store_id_) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_SUPERSEDED",
                     fmt::format("store {} took epoch {} and this one's place", newest.store_id, newest.epoch));
  }
  return InCore([](Core& core) {
    if (!core.collection_held()) return absl::OkStatus();
    return MakeError(absl::StatusCode::kFailedPrecondition, "COLLECTION_HELD",
                     "the store was restored and may not know the newest checkpoints: nothing is deleted until the "
                     "coordinator is started once with --adopt");
  });
}

absl::Status Collector::DeleteCheckpoints(const std::vector<store::CheckpointRow>& rows) {
  for (const store::CheckpointRow& row : rows) {
    const std::string& manifest = row.checkpoint.manifest_uri;
    ATOLL_RETURN_IF_ERROR(CheckRunning());
    // Files first, then the row: a process that dies in between tries again.
    ATOLL_RETURN_IF_ERROR(Failpoint("collector.before_files"));
    // The manifest before the rest: without its files it would look like a damaged checkpoint.
    ATOLL_RETURN_IF_ERROR(blobs_.Delete(manifest));
    ATOLL_RETURN_IF_ERROR(blobs_.DeleteTree(jobs::FolderOf(manifest)));
    ATOLL_RETURN_IF_ERROR(Failpoint("collector.after_files"));
    ATOLL_RETURN_IF_ERROR(InCore([&](Core& core) { return core.ForgetCheckpoint(manifest); }));
    metrics_.collected_files->Increment();
    spdlog::info("collected checkpoint {}: no longer kept", manifest);
  }
  return absl::OkStatus();
}

absl::Status Collector::List(Listing* listing) {
  const std::string jobs_root = blobs_.UriOf("jobs/");
  ATOLL_ASSIGN_OR_RETURN(const std::vector<storage::FileInfo> files, blobs_.List(jobs_root));
  for (const storage::FileInfo& file : files) {
    jobs::AttemptFolder folder;
    if (!jobs::ParseAttemptFolder(jobs_root, file.uri, &folder)) continue;
    listing->files.push_back({file.uri, file.modified, {}});
    listing->folders.push_back(std::move(folder));
  }
  return absl::OkStatus();
}

absl::Status Collector::DeleteFiles(const std::vector<jobs::StoredFile>& files, const Core::CollectionFacts& facts) {
  for (const jobs::Collection& file :
       jobs::CollectableFiles(files, facts.needed_files, facts.needed_folders, clock_.Now(), options_.min_age)) {
    ATOLL_RETURN_IF_ERROR(CheckRunning());
    ATOLL_RETURN_IF_ERROR(blobs_.Delete(file.uri));
    metrics_.collected_files->Increment();
    spdlog::info("collected {}: {}", file.uri, file.reason);
  }
  return absl::OkStatus();
}

absl::Status Collector::ForgetEmptyJobs(const std::vector<store::DeletedJob>& deleted) {
  for (const store::DeletedJob& job : deleted) {
    ATOLL_RETURN_IF_ERROR(CheckRunning());
    ATOLL_ASSIGN_OR_RETURN(const std::vector<storage::FileInfo> left,
                           blobs_.List(blobs_.UriOf(fmt::format("jobs/{}/", job.job_id))));
    if (!left.empty()) continue;
    ATOLL_RETURN_IF_ERROR(InCore([&](Core& core) { return core.ForgetDeletedJob(job.job_id); }));
  }
  return absl::OkStatus();
}

}  // namespace atl::coordinator
