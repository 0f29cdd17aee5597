// The leader's side of checkpoints: when every rank has written its part, writes the manifest, create-once, and has the
// coordinator commit it. On a thread of its own, so that training goes on while the coordinator is away.
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

// What the ranks do not know of their checkpoints, and where these go.
struct CommitContext {
  spec::LeaseToken token;
  std::string write_prefix;
  std::string nonce;
  int32_t ranks = 1;  // that write a part
  int32_t milestone_every = 0;
  std::string build;
};

struct CommittedManifest {
  int64_t step = 0;
  spec::Artifact artifact;  // "checkpoint"
};

// Of one attempt. Thread-safe. Owns the thread; the destructor gives up what is not committed and joins it.
class CheckpointCommits {
 public:
  // `stale` is called on the thread when the coordinator refuses the attempt's token; must not block.
  CheckpointCommits(CommitContext context, storage::BlobStore* store, CoordinatorClient* coordinator, Clock* clock,
                    WorkerMetrics* metrics, std::function<void(const absl::Status&)> stale);
  ~CheckpointCommits();

  // Never blocks.
  void OnStageFiles(int32_t rank, const atlpb::island::v1::StageFiles& stages);
  // Blocks until everything complete is committed or refused, or `timeout` passed, or GiveUp.
  void AwaitCommitted(absl::Duration timeout);
  // Tries nothing any more.
  void GiveUp();

  std::optional<CommittedManifest> last() const;
  // The longest of late, from the first rank's part to the commit; zero before the first.
  absl::Duration commit_time() const;
  // Why the last one that was not committed was refused; OK when none was.
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
  std::map<int64_t, absl::Duration> first_parts_ ABSL_GUARDED_BY(mutex_);  // when they came, by step
  LongestOfLatest commit_times_ ABSL_GUARDED_BY(mutex_);
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace atl::worker
