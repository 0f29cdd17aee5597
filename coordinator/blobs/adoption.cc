#include "coordinator/blobs/adoption.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/checkpoint.h"
#include "common/storage/sha256.h"
#include "coordinator/jobs/retention.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;

struct FoundManifest {
  std::string uri;
  jobs::AttemptFolder folder;
};

// Whether the error says what is in the store, and not that the store could not be asked.
bool IsDamage(const absl::Status& status) {
  return status.code() == absl::StatusCode::kNotFound || status.code() == absl::StatusCode::kDataLoss;
}

// Whether the task has diverged and gone back from `step` since the attempt of `folder` wrote it. An attempt of another
// epoch may have been of a history of its own.
bool WentBackFrom(const Core::AdoptableTask& task, const jobs::AttemptFolder& folder, int64_t step) {
  return std::any_of(task.divergences.begin(), task.divergences.end(), [&](const auto& divergence) {
    return folder.store_epoch == divergence.store_epoch && folder.attempt <= divergence.attempt &&
           step > divergence.to_step;
  });
}

using AdoptedSteps = std::map<int64_t, std::pair<jobs::AttemptFolder, store::CheckpointRow>>;

// Leaves out what an attempt wrote at or above the first step of a later one of its epoch: the later one began below
// it, because it was never committed or because the task went back.
void LeaveOutSteps(const std::string& task_id, AdoptedSteps* by_step) {
  std::map<int64_t, int64_t> latest;  // attempt of the steps below, by epoch
  for (auto it = by_step->begin(); it != by_step->end();) {
    const jobs::AttemptFolder& folder = it->second.first;
    int64_t& attempt = latest[folder.store_epoch];
    if (folder.attempt < attempt) {
      spdlog::info("task {}: not taken back: attempt {} began below step {} of attempt {}", task_id, attempt, it->first,
                   folder.attempt);
      it = by_step->erase(it);
    } else {
      attempt = folder.attempt;
      ++it;
    }
  }
}

class AdoptionRun {
 public:
  AdoptionRun(storage::BlobStore& blobs, Core& core, Clock* clock, const std::function<bool()>& go_on)
      : blobs_(blobs), core_(core), clock_(*clock), go_on_(go_on) {}

  absl::StatusOr<Adoption> Run() {
    ATOLL_RETURN_IF_ERROR(FindManifests());
    ATOLL_ASSIGN_OR_RETURN(const std::vector<Core::AdoptableTask> tasks, core_.AdoptableTasks());
    for (const Core::AdoptableTask& task : tasks) ATOLL_RETURN_IF_ERROR(AdoptTask(task));
    return adoption_;
  }

 private:
  absl::Status FindManifests() {
    const std::string jobs_root = blobs_.UriOf("jobs/");
    ATOLL_ASSIGN_OR_RETURN(const std::vector<storage::FileInfo> files, blobs_.List(jobs_root));
    for (const storage::FileInfo& file : files) {
      FoundManifest found{file.uri, {}};
      if (!file.uri.ends_with("/manifest.json") || !jobs::ParseAttemptFolder(jobs_root, file.uri, &found.folder)) {
        continue;
      }
      // An attempt of this epoch still commits for itself.
      if (found.folder.store_epoch < core_.store_epoch()) manifests_[found.folder.task_id].push_back(std::move(found));
    }
    return absl::OkStatus();
  }

  // In pieces: a file may be larger than this machine's memory.
  absl::Status CheckHash(const std::string& uri, const std::string& sha256) {
    ATOLL_ASSIGN_OR_RETURN(storage::WrittenFile file, blobs_.Hash(uri));
    // A second transfer tells a damaged file from a damaged transfer.
    if (file.sha256 != sha256) {
      ATOLL_ASSIGN_OR_RETURN(file, blobs_.Hash(uri));
    }
    if (file.sha256 == sha256) return absl::OkStatus();
    return MakeError(absl::StatusCode::kDataLoss, "HASH_MISMATCH",
                     fmt::format("{}: expected SHA-256 {}, found {}", uri, sha256, file.sha256));
  }

  // Reads every file of the checkpoint against its hash. NOT_FOUND or DATA_LOSS when it is not whole.
  absl::Status CheckFiles(const storage::CheckpointManifest& manifest, const std::string& manifest_uri) {
    for (const storage::CheckpointFile& file : manifest.files) {
      if (go_on_ && !go_on_()) {
        spdlog::warn("not all checkpoints are read: the next start with --adopt goes on");
        return MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_STOPPING", "asked to end");
      }
      ATOLL_RETURN_IF_ERROR(CheckHash(jobs::FolderOf(manifest_uri) + file.name, file.sha256));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRow(const store::CheckpointRow& row) {
    const std::string& uri = row.checkpoint.manifest_uri;
    ATOLL_ASSIGN_OR_RETURN(const std::string text, blobs_.ReadVerified(uri, row.checkpoint.manifest_sha256));
    ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointManifest manifest, storage::ParseManifest(text, uri));
    return CheckFiles(manifest, uri);
  }

  // Given up: the rows whose files are gone. Returns the newest step that is whole.
  absl::StatusOr<int64_t> CheckRows(const Core::AdoptableTask& task, std::set<std::string>* lost) {
    int64_t newest = 0;
    for (const store::CheckpointRow& row : task.rows) {
      if (row.state != store::CheckpointState::kCommitted) continue;
      const absl::Status status = CheckRow(row);
      if (status.ok()) {
        newest = std::max(newest, row.checkpoint.step);
      } else if (IsDamage(status)) {
        spdlog::warn("task {}: the checkpoint of step {} is not whole any more and is given up: {}", task.task_id,
                     row.checkpoint.step, std::string(status.message()));
        lost->insert(row.checkpoint.manifest_uri);
      } else {
        return status;
      }
    }
    return newest;
  }

  absl::StatusOr<store::CheckpointRow> RowOf(const FoundManifest& found, int32_t milestone_every) {
    ATOLL_ASSIGN_OR_RETURN(const std::string text, blobs_.Read(found.uri, kMaxManifestBytes));
    ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointManifest manifest, storage::ParseManifest(text, found.uri));
    if (manifest.task_id != found.folder.task_id || manifest.attempt != found.folder.attempt || manifest.step < 1) {
      return MakeError(
          absl::StatusCode::kDataLoss, "CHECKPOINT_MISPLACED",
          fmt::format("{}: expected a step of attempt {} of task {}, found step {} of attempt {} of task {}", found.uri,
                      found.folder.attempt, found.folder.task_id, manifest.step, manifest.attempt, manifest.task_id));
    }
    ATOLL_RETURN_IF_ERROR(CheckFiles(manifest, found.uri));
    const bool milestone = milestone_every > 0 && manifest.step % milestone_every == 0;
    return store::CheckpointRow{found.folder.task_id,
                                found.folder.attempt,
                                {manifest.step, found.uri, storage::Sha256(text), milestone},
                                store::CheckpointState::kCommitted,
                                clock_.Now()};
  }

  absl::Status AdoptTask(const Core::AdoptableTask& task) {
    std::set<std::string> lost;
    ATOLL_ASSIGN_OR_RETURN(const int64_t newest, CheckRows(task, &lost));
    std::set<std::string> known;
    for (const store::CheckpointRow& row : task.rows) known.insert(row.checkpoint.manifest_uri);
    // One of each step: that of the latest attempt.
    AdoptedSteps by_step;
    for (const FoundManifest& found : manifests_[task.task_id]) {
      if (known.contains(found.uri)) continue;
      absl::StatusOr<store::CheckpointRow> row = RowOf(found, task.milestone_every);
      if (!row.ok()) {
        if (!IsDamage(row.status())) return row.status();
        spdlog::warn("task {}: not taken back: {}", task.task_id, std::string(row.status().message()));
        ++adoption_.broken;
        continue;
      }
      const int64_t step = row->checkpoint.step;
      if (step <= newest) continue;
      if (WentBackFrom(task, found.folder, step)) {
        spdlog::info("task {}: not taken back: it diverged and went back from step {} of attempt {}", task.task_id,
                     step, found.folder.attempt);
        continue;
      }
      const auto order = [](const jobs::AttemptFolder& folder) {
        return std::pair(folder.store_epoch, folder.attempt);
      };
      const auto it = by_step.find(step);
      if (it == by_step.end() || order(it->second.first) < order(found.folder)) {
        by_step.insert_or_assign(step, std::pair(found.folder, *std::move(row)));
      }
    }
    LeaveOutSteps(task.task_id, &by_step);
    if (by_step.empty() && lost.empty()) return absl::OkStatus();
    std::vector<store::CheckpointRow> rows;
    for (auto& [step, entry] : by_step) {
      spdlog::info("task {}: takes back step {} of attempt {}: {}", task.task_id, step, entry.second.attempt,
                   entry.second.checkpoint.manifest_uri);
      rows.push_back(std::move(entry.second));
    }
    ATOLL_RETURN_IF_ERROR(core_.AdoptCheckpoints(task.task_id, rows, lost));
    adoption_.adopted += static_cast<int64_t>(rows.size());
    adoption_.lost += static_cast<int64_t>(lost.size());
    return absl::OkStatus();
  }

  storage::BlobStore& blobs_;
  Core& core_;
  Clock& clock_;
  const std::function<bool()>& go_on_;
  std::map<std::string, std::vector<FoundManifest>> manifests_;
  Adoption adoption_;
};

}  // namespace

absl::StatusOr<Adoption> AdoptCheckpoints(storage::BlobStore& blobs, Core& core, Clock* clock,
                                          const std::function<bool()>& go_on) {
  if (!core.collection_held()) {
    spdlog::info("nothing to take back: the store was not restored since collection was last released");
    return Adoption{};
  }
  ATOLL_ASSIGN_OR_RETURN(const Adoption adoption, AdoptionRun(blobs, core, clock, go_on).Run());
  ATOLL_RETURN_IF_ERROR(core.ReleaseCollection());
  spdlog::info("took {} checkpoints back, left {} that are not whole, gave up {} that were; collection goes on",
               adoption.adopted, adoption.broken, adoption.lost);
  return adoption;
}

}  // namespace atl::coordinator
