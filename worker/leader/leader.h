// Rank 0 of an island: hosts the rendezvous, claims tasks from the coordinator, runs them on the island's ranks and
// settles them.
//
// Threads: Run's (the main thread) claims and settles, and runs the tasks that are not training. The parts own the
// others: compute and checkpoint writing (RankRunner), rendezvous (Island), heartbeats (LeaseKeeper), commits
// (CheckpointCommits).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/auth/security.h"
#include "common/rpc/server.h"
#include "worker/attempt/attempt_end.h"
#include "worker/attempt/cost_profile.h"
#include "worker/attempt/divergence.h"
#include "worker/attempt/rank_runner.h"
#include "worker/attempt/stop_plan.h"
#include "worker/island/island.h"
#include "worker/leader/checkpoint_commits.h"
#include "worker/leader/coordinator_client.h"
#include "worker/leader/lease_keeper.h"
#include "worker/leader/progress_tracker.h"
#include "worker/leader/storage_keeper.h"
#include "worker/tasks/task.h"

namespace atl::worker {

struct LeaderOptions {
  IslandSettings island;
  std::string listen;  // "host:port" of the rendezvous; port 0 takes a free one
  // Security of the rendezvous; null: in the clear.
  std::shared_ptr<const rpc::Security> security;
  CoordinatorOptions coordinator;
  // The leader fills in `ranks` with the number of present ranks.
  atlpb::island::v1::Capabilities capabilities;
  AttemptParts parts;
  std::function<absl::StatusOr<std::vector<spec::Artifact>>(const tasks::TaskContext&)> run_task;
  // How long the leader waits for a lost rank before it continues with the others.
  absl::Duration rejoin_timeout = absl::Seconds(10);
  // How long the blob store may fail without progress before the held task fails for it, and again as long before the
  // next one does. `store_interval`: the time between two tries meanwhile.
  absl::Duration store_patience = absl::Minutes(10);
  absl::Duration store_interval = absl::Seconds(5);
  // Called on another thread when the leader's own rank hangs: see IslandEvents.
  std::function<void(const absl::Status&)> hung;
  // Time for the ranks to receive the leader's end.
  absl::Duration farewell_grace = absl::Seconds(1);
};

class Leader {
 public:
  // Starts the rendezvous.
  static absl::StatusOr<std::unique_ptr<Leader>> Start(LeaderOptions options);
  ~Leader();

  int rendezvous_port() const { return server_->port(); }

  // Claims and settles until Stop. Returns an error if another process has taken the island's place, the coordinator
  // rejects the island permanently, or no task can run here.
  absl::Status Run();
  // Callable from any thread. Reports the end to health probes, stops the attempt (with a checkpoint if there is time),
  // releases the lease and ends.
  void Stop(StopRequest request);
  // Ends at once, because the grace is over. The lease is still released if the coordinator answers.
  void StopNow();

 private:
  explicit Leader(LeaderOptions options);

  void Gather();
  absl::Status RegisterIfChanged();
  absl::Status ClaimAndRun();
  void LogUnmet(const std::vector<std::string>& unmet);
  void RunGrant(const atlpb::island::v1::TaskGrant& grant);
  AttemptEnd RunTask(const spec::TaskGrant& grant, std::vector<spec::Artifact>* outputs);
  AttemptEnd RunLeaderTask(const spec::TaskGrant& grant, std::vector<spec::Artifact>* outputs);
  AttemptEnd RunTraining(const spec::TaskGrant& grant, std::vector<spec::Artifact>* outputs);
  // Decides how far the task goes back after `end`, and writes the evidence. If a rollback cures nothing, returns
  // another end.
  AttemptEnd DecideRollback(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                            const atlpb::island::v1::StartAttempt& start, AttemptEnd end);
  // If the blob store is full, unreachable or another one: holds the lease until the store works, then releases the
  // task. Retrying at once would use up the task's budget before an operator could repair the store.
  AttemptEnd AwaitStore(const spec::TaskGrant& grant, AttemptEnd end);
  absl::Status TakeFinalCheckpoint(const spec::CommittedCheckpoint& checkpoint, std::vector<spec::Artifact>* outputs);
  // Returns the command with which every attempt at `grant` by `plan` begins.
  atlpb::island::v1::StartAttempt StartOf(const spec::TaskGrant& grant, const planner::Plan& plan) const;
  // Blocks until the attempt is over.
  AttemptOutcome RunOnIsland(const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks);
  // Returns costs measured by `ranks`, or counted ones if the job leaves the planner no choice.
  absl::StatusOr<planner::Profile> CostsFor(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                            const std::vector<int32_t>& ranks);
  // Blocks until all of `ranks` have measured.
  absl::StatusOr<planner::Profile> MeasureOnRanks(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                                  const std::vector<int32_t>& ranks, const std::string& key,
                                                  const Measurement& measurement);
  // Makes the plan from their costs. A resumed task with frozen components keeps the plan of the previous attempt.
  absl::StatusOr<planner::Plan> PlanFor(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                        const std::vector<int32_t>& ranks);
  // `ranks`: in, the present ones; out, those of the plan.
  absl::StatusOr<atlpb::island::v1::StartAttempt> PlanAttempt(const spec::TaskGrant& grant,
                                                              const TrainingInputs& inputs,
                                                              std::vector<int32_t>* ranks);
  // Blocks until the attempt is over and its complete checkpoints are committed.
  AttemptOutcome RunAttempt(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                            const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks,
                            std::vector<spec::Artifact>* outputs);
  void Settle(const spec::TaskGrant& grant, const AttemptEnd& end, const std::vector<spec::Artifact>& outputs);

  // Called on other threads.
  void OnStepDone(const atlpb::island::v1::StepDone& done);
  void OnDiverged(const atlpb::island::v1::Diverged& diverged);
  void OnStageFiles(int32_t rank, const atlpb::island::v1::StageFiles& files);
  void OnRankProfile(int32_t rank, const atlpb::island::v1::RankProfile& profile);
  void OnRevoked(const spec::LeaseToken& token, const std::string& reason);
  void OnDrain(const spec::LeaseToken& token, const std::string& reason);
  void OnSuperseded(const absl::Status& status, int64_t incarnation);
  void OnStorageRenewed(const spec::LeaseToken& token, const spec::StorageGrant& storage);
  void GiveUpTask(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Revoked() const;
  bool Stopping() const;
  // Returns why the running task should stop with a checkpoint: the process ends, or the coordinator wants it. Else
  // nullopt.
  std::optional<StopRequest> AskedToStop() const;
  absl::Duration CommitTime() const;

  const LeaderOptions options_;
  WorkerMetrics* const metrics_;
  Clock* const clock_;
  const std::string request_id_;  // of this process's start
  std::unique_ptr<CoordinatorClient> coordinator_;
  std::unique_ptr<Island> island_;
  std::unique_ptr<RankRunner> runner_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<LeaseKeeper> keeper_;
  std::unique_ptr<StorageKeeper> storage_keeper_;

  // Used by Run's thread only.
  size_t settled_ranks_ = 0;                           // the leader waited for more than these, and continues with them
  size_t registered_ranks_ = 0;                        // 0: not registered
  std::string epoch_uri_;                              // of the coordinator's blob store
  int64_t incarnation_ = 0;                            // sent to ranks: the highest of this process
  std::optional<absl::Duration> store_failing_since_;  // since the last completed or failed task; unset: it works
  std::set<std::string> unmet_;
  absl::Status unfit_;  // why no task can run here

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool revoked_ ABSL_GUARDED_BY(mutex_) = false;
  spec::LeaseToken held_ ABSL_GUARDED_BY(mutex_);  // of the running task, or the last one
  absl::Status superseded_ ABSL_GUARDED_BY(mutex_);
  StopRequest stop_ ABSL_GUARDED_BY(mutex_);                         // of the process
  std::optional<std::string> drain_reason_ ABSL_GUARDED_BY(mutex_);  // of the running task
  std::unique_ptr<ProgressTracker> tracker_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::string> rank_profiles_ ABSL_GUARDED_BY(mutex_);  // JSON, of the running measurement
  std::optional<Divergence> divergence_ ABSL_GUARDED_BY(mutex_);          // of the running attempt
  CheckpointCommits* commits_ ABSL_GUARDED_BY(mutex_) = nullptr;          // of the running attempt
};

}  // namespace atl::worker
