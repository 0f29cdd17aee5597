// Rank 0 of an island: hosts the rendezvous, claims tasks from the coordinator, has them done by the island's ranks and
// settles them.
//
// Threads: Run's (the main thread) claims and settles, and runs the tasks that are not training; the rest belong to the
// parts: compute and checkpoint writing (RankRunner), rendezvous (Island), heartbeats (LeaseKeeper), commits
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
  // Of the rendezvous; null: in the clear.
  std::shared_ptr<const rpc::Security> security;
  CoordinatorOptions coordinator;
  // ranks is filled in with those that are there.
  atlpb::island::v1::Capabilities capabilities;
  AttemptParts parts;
  std::function<absl::StatusOr<std::vector<spec::Artifact>>(const tasks::TaskContext&)> run_task;
  // How long the leader waits for a lost rank before it goes on with the others.
  absl::Duration rejoin_timeout = absl::Seconds(10);
  // How long the blob store may fail, with nothing done since, before that is held against the task that is kept, and
  // as long again before it is held against another; and how often it is tried meanwhile.
  absl::Duration store_patience = absl::Minutes(10);
  absl::Duration store_interval = absl::Seconds(5);
  // Called, on another thread, when the leader's own rank hangs: see IslandEvents.
  std::function<void(const absl::Status&)> hung;
  // For the ranks to hear that the leader ends.
  absl::Duration farewell_grace = absl::Seconds(1);
};

class Leader {
 public:
  // Starts the rendezvous.
  static absl::StatusOr<std::unique_ptr<Leader>> Start(LeaderOptions options);
  ~Leader();

  int rendezvous_port() const { return server_->port(); }

  // Claims and settles until Stop; an error when another process has taken the island's place, the coordinator refuses
  // the island for good, or no task can be done here.
  absl::Status Run();
  // From any thread: say so to health probes, stop the attempt, with a checkpoint if there is time, release the lease,
  // end.
  void Stop(StopRequest request);
  // The grace is over: end now. The lease is still given back, if the coordinator answers.
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
  // How far the task goes back after `end`, with the evidence written; or, where going back mends nothing, another end.
  AttemptEnd DecideRollback(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                            const atlpb::island::v1::StartAttempt& start, AttemptEnd end);
  // Where the blob store is full, away or another one: waits, with the lease, until it works, and gives the task back.
  // Who went on at once would use up the task's budget before anybody could mend the store.
  AttemptEnd AwaitStore(const spec::TaskGrant& grant, AttemptEnd end);
  absl::Status TakeFinalCheckpoint(const spec::CommittedCheckpoint& checkpoint, std::vector<spec::Artifact>* outputs);
  // Returns the command with which every attempt at `grant` by `plan` begins.
  atlpb::island::v1::StartAttempt StartOf(const spec::TaskGrant& grant, const planner::Plan& plan) const;
  // Blocks until the attempt is over.
  AttemptOutcome RunOnIsland(const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks);
  // Measured by `ranks`, or, where the job leaves the planner no choice, counted.
  absl::StatusOr<planner::Profile> CostsFor(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                            const std::vector<int32_t>& ranks);
  // Blocks until all of `ranks` have measured.
  absl::StatusOr<planner::Profile> MeasureOnRanks(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                                  const std::vector<int32_t>& ranks, const std::string& key,
                                                  const Measurement& measurement);
  // Made from their costs; of a task with frozen components that goes on, the plan of the attempt before.
  absl::StatusOr<planner::Plan> PlanFor(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                        const std::vector<int32_t>& ranks);
  // `ranks`: in, those that are there; out, those of the plan.
  absl::StatusOr<atlpb::island::v1::StartAttempt> PlanAttempt(const spec::TaskGrant& grant,
                                                              const TrainingInputs& inputs,
                                                              std::vector<int32_t>* ranks);
  // Blocks until the attempt is over and its complete checkpoints are committed.
  AttemptOutcome RunAttempt(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                            const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks,
                            std::vector<spec::Artifact>* outputs);
  void Settle(const spec::TaskGrant& grant, const AttemptEnd& end, const std::vector<spec::Artifact>& outputs);

  // On other threads.
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
  // Why the task that runs is to be given back well: the process ends, or the coordinator wants it. Unset: it is not.
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

  // Run's thread only.
  size_t settled_ranks_ = 0;     // the leader has waited for more than these, and goes on with them
  size_t registered_ranks_ = 0;  // 0: not registered
  std::string epoch_uri_;        // of the coordinator's blob store
  int64_t incarnation_ = 0;      // that ranks are told: the highest of this process
  std::optional<absl::Duration> store_failing_since_;  // with nothing done or failed since; unset: it works
  std::set<std::string> unmet_;
  absl::Status unfit_;  // why no task can be done here

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool revoked_ ABSL_GUARDED_BY(mutex_) = false;
  spec::LeaseToken held_ ABSL_GUARDED_BY(mutex_);  // of the task that runs, or ran last
  absl::Status superseded_ ABSL_GUARDED_BY(mutex_);
  StopRequest stop_ ABSL_GUARDED_BY(mutex_);                         // of the process
  std::optional<std::string> drain_reason_ ABSL_GUARDED_BY(mutex_);  // of the task that runs
  std::unique_ptr<ProgressTracker> tracker_ ABSL_GUARDED_BY(mutex_);
  std::map<int32_t, std::string> rank_profiles_ ABSL_GUARDED_BY(mutex_);  // JSON, of the measurement that runs
  std::optional<Divergence> divergence_ ABSL_GUARDED_BY(mutex_);          // of the attempt that runs
  CheckpointCommits* commits_ ABSL_GUARDED_BY(mutex_) = nullptr;          // of the attempt that runs
};

}  // namespace atl::worker
