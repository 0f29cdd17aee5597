// The leader's side of checkpoints: after every rank has written its part, writes the manifest, create-once, and lets
// the coordinator commit it. Runs on its own thread, so that training continues while the coordinator is unreachable.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/island/v1/rendezvous_service.pb.h"
#include "common/base/clock.h"
#include "common/formats/checkpoint.h"
#include "common/spec/task.h"
#include "common/storage/blob_store.h"
#include "worker/attempt/stop_plan.h"
#include "worker/attempt/worker_metrics.h"
#include "worker/leader/coordinator_client.h"
#include "worker/leader/pending_checkpoints.h"

namespace atl::worker {

// The facts about a checkpoint that only the leader knows, and its destination.
struct CommitContext {
  spec::LeaseToken token;
  std::string write_prefix;
  std::string nonce;
  int32_t ranks = 1;            // how many ranks write a part
  int32_t milestone_every = 0;  // steps; 0: no milestones
  std::string build;
};

struct CommittedManifest {
  int64_t step = 0;
  spec::Artifact artifact;  // "checkpoint"
};

// For one attempt. Thread-safe. Owns the thread; the destructor gives up uncommitted checkpoints and joins it.
class CheckpointCommits {
 public:
  // `stale` is called on the thread when the coordinator rejects the attempt's token; must not block.
  CheckpointCommits(CommitContext context, storage::BlobStore* store, CoordinatorClient* coordinator, Clock* clock,
                    WorkerMetrics* metrics, std::function<void(const absl::Status&)> stale);
  ~CheckpointCommits();

  // Adds one rank's part of a checkpoint. Never blocks.
  void OnStageFiles(int32_t rank, const atlpb::island::v1::StageFiles& stages);
  // Blocks until every complete checkpoint is committed or has failed, `timeout` passes, or GiveUp is called.
  void AwaitCommitted(absl::Duration timeout);
  // Begins no further checkpoint, ends the retries of the current one's commit, and wakes AwaitCommitted. The current
  // one may still be committed by a call that does not have to be repeated.
  void GiveUp();

  // Returns the latest committed checkpoint.
  std::optional<CommittedManifest> last() const;
  // Returns the longest time from the first rank's part to the commit, of the last 8 commits; zero before the first.
  absl::Duration commit_time() const;
  // Returns the error of the latest checkpoint that was not committed: its manifest could not be written, the
  // coordinator rejected it, or its commit was given up. OK if there was none. No later success clears it.
  absl::Status refused() const;

 private:
  void Loop();
  absl::Status CommitOne(storage::CheckpointManifest checkpoint);
  absl::StatusOr<storage::WrittenFile> WriteManifest(storage::CheckpointManifest manifest);
  void DeleteFolders(const std::vector<int64_t>& steps);

  const CommitContext context_;
  storage::BlobStore* const store_;
  CoordinatorClient* const coordinator_;
  Clock* const clock_;
  WorkerMetrics* const metrics_;
  const std::function<void(const absl::Status&)> stale_;

  mutable absl::Mutex mutex_;
  PendingCheckpoints pending_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> to_delete_ ABSL_GUARDED_BY(mutex_);
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<CommittedManifest> last_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, absl::Duration> first_parts_ ABSL_GUARDED_BY(mutex_);  // arrival times, by step
  LongestOfLatest commit_times_ ABSL_GUARDED_BY(mutex_);
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace atl::worker
