#include "worker/leader/checkpoint_commits.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/failpoint.h"
#include "common/base/status_macros.h"

namespace atl::worker {

CheckpointCommits::CheckpointCommits(CommitContext context, storage::BlobStore* store, CoordinatorClient* coordinator,
                                     Clock* clock, WorkerMetrics* metrics,
                                     std::function<void(const absl::Status&)> stale)
    : context_(std::move(context)),
      store_(store),
      coordinator_(coordinator),
      clock_(clock),
      metrics_(metrics),
      stale_(std::move(stale)),
      pending_(context_.ranks),
      thread_([this] { Loop(); }) {}

CheckpointCommits::~CheckpointCommits() {
  GiveUp();
  thread_.join();
  // The remaining checkpoints will not be committed.
  metrics_->uncommitted_checkpoints->Set(0);
}

void CheckpointCommits::OnStageFiles(int32_t rank, const atlpb::island::v1::StageFiles& stages) {
  absl::StatusOr<storage::CheckpointManifest> part =
      storage::ParseManifest(stages.manifest(), fmt::format("manifest of rank {}", rank));
  if (!part.ok()) {
    spdlog::error("task {}: {}", context_.token.task_id, part.status().ToString());
    return;
  }
  for (const auto& file : stages.files()) {
    part->files.push_back({.name = file.name(), .bytes = file.bytes(), .sha256 = file.sha256()});
  }
  absl::MutexLock lock(&mutex_);
  first_parts_.try_emplace(part->step, clock_->Monotonic());
  for (const int64_t step : pending_.Add(rank, *std::move(part))) to_delete_.push_back(step);
  metrics_->uncommitted_checkpoints->Set(pending_.waiting());
}

void CheckpointCommits::AwaitCommitted(absl::Duration timeout) {
  const absl::Duration deadline = clock_->Monotonic() + timeout;
  absl::MutexLock lock(&mutex_);
  const auto settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return pending_.waiting() == 0 || given_up_; };
  clock_->AwaitUntil(&mutex_, absl::Condition(&settled), deadline);
}

void CheckpointCommits::GiveUp() {
  {
    absl::MutexLock lock(&mutex_);
    given_up_ = true;
  }
  coordinator_->GiveUpCommits(context_.token);
}

std::optional<CommittedManifest> CheckpointCommits::last() const {
  absl::MutexLock lock(&mutex_);
  return last_;
}

absl::Duration CheckpointCommits::commit_time() const {
  absl::MutexLock lock(&mutex_);
  return commit_times_.value();
}

absl::Status CheckpointCommits::refused() const {
  absl::MutexLock lock(&mutex_);
  return refused_;
}

void CheckpointCommits::Loop() {
  for (;;) {
    std::optional<storage::CheckpointManifest> next;
    std::vector<int64_t> to_delete;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return given_up_ || pending_.waiting() > 0 || !to_delete_.empty();
      };
      mutex_.Await(absl::Condition(&due));
      if (given_up_) return;
      next = pending_.Next();
      to_delete.swap(to_delete_);
    }
    DeleteFolders(to_delete);
    if (!next.has_value()) continue;
    const absl::Status status = CommitOne(*next);
    if (absl::IsAborted(status)) stale_(status);
    absl::MutexLock lock(&mutex_);
    if (!status.ok()) {
      spdlog::warn("task {}: checkpoint of step {} not committed: {}", context_.token.task_id, next->step,
                   status.ToString());
      refused_ = status;
    }
    first_parts_.erase(first_parts_.begin(), first_parts_.upper_bound(next->step));
    pending_.Done(next->step);
    metrics_->uncommitted_checkpoints->Set(pending_.waiting());
  }
}

absl::Status CheckpointCommits::CommitOne(storage::CheckpointManifest checkpoint) {
  ATOLL_ASSIGN_OR_RETURN(const storage::WrittenFile manifest, WriteManifest(checkpoint));
  const spec::CommittedCheckpoint row{
      .step = checkpoint.step,
      .manifest_uri = manifest.uri,
      .manifest_sha256 = manifest.sha256,
      .milestone = context_.milestone_every > 0 && checkpoint.step % context_.milestone_every == 0};
  ATOLL_RETURN_IF_ERROR(coordinator_->Commit(context_.token, row));
  spdlog::info("task {} attempt {}: checkpoint of step {} is committed", context_.token.task_id, context_.token.attempt,
               checkpoint.step);
  absl::MutexLock lock(&mutex_);
  if (const auto first = first_parts_.find(checkpoint.step); first != first_parts_.end()) {
    commit_times_.Add(clock_->Monotonic() - first->second);
  }
  last_ = CommittedManifest{
      .step = checkpoint.step,
      .artifact = {.name = "checkpoint", .uri = manifest.uri, .bytes = manifest.bytes, .sha256 = manifest.sha256}};
  return absl::OkStatus();
}

absl::StatusOr<storage::WrittenFile> CheckpointCommits::WriteManifest(storage::CheckpointManifest manifest) {
  manifest.task_id = context_.token.task_id;
  manifest.attempt = context_.token.attempt;
  manifest.build = context_.build;
  const std::string json = storage::ToJson(manifest);
  const std::string uri =
      storage::CheckpointFolder(context_.write_prefix, manifest.step, context_.nonce) + "manifest.json";
  ATOLL_RETURN_IF_ERROR(Failpoint("manifest.before_write"));
  absl::StatusOr<storage::WrittenFile> written = store_->CreateOnce(uri, json);
  ATOLL_RETURN_IF_ERROR(Failpoint("manifest.after_write"));
  if (!absl::IsAlreadyExists(written.status())) return written;
  // An earlier try may have arrived although its answer did not: the folder's nonce is this attempt's alone.
  ATOLL_RETURN_IF_ERROR(store_->ReadVerified(uri, storage::Sha256(json)).status());
  return storage::WrittenFile{.uri = uri, .bytes = static_cast<int64_t>(json.size()), .sha256 = storage::Sha256(json)};
}

// Best effort: whatever stays is collected once the attempt is superseded.
void CheckpointCommits::DeleteFolders(const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) {
    spdlog::warn("task {}: the checkpoint of step {} is given up for a later one", context_.token.task_id, step);
    const std::string folder = storage::CheckpointFolder(context_.write_prefix, step, context_.nonce);
    const absl::Status status = store_->DeleteTree(folder);
    if (!status.ok()) spdlog::warn("{} stays behind: {}", folder, status.ToString());
  }
}

}  // namespace atl::worker
