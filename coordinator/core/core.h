// The coordinator's core: applies the decisions of coordinator/jobs and coordinator/leases and writes them through the
// store. Only then does it change its memory and answer. Knows neither proto nor gRPC.
//
// Not thread-safe: owned by one executor (executor.h), or by a test. Methods may block on the store's disk, never on
// the network. Callbacks never run inside a method: they gather until the owner calls Deliver.
//
// In memory: unfinished jobs, islands and leases, all rebuilt from the store at start; and volatile state: the ends of
// leases, progress, waiting claims, watches.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/spec/spec_io.h"
#include "coordinator/core/core_metrics.h"
#include "coordinator/core/watch_list.h"
#include "coordinator/jobs/job_machine.h"
#include "coordinator/jobs/retention.h"
#include "coordinator/leases/claim.h"
#include "coordinator/leases/lease.h"
#include "coordinator/leases/membership.h"
#include "coordinator/leases/slow_islands.h"
#include "coordinator/store/store.h"

namespace atl::coordinator {

struct CoreOptions {
  leases::LeaseOptions lease;
  // Root of the blob store, without a trailing '/'.
  std::string blob_root;
  // Least time between two messages of one watch.
  absl::Duration watch_interval = absl::Milliseconds(100);
  // Unguessable bytes, for secrets and ids.
  std::function<std::string(size_t bytes)> random_bytes;
};

// A job with the volatile state of its tasks.
struct JobView {
  jobs::JobRecord record;
  std::map<std::string, spec::Progress, std::less<>> progress;  // by task
  // The outcomes of the last attempts of FAILED tasks, by task, newest first.
  std::map<std::string, std::vector<store::AttemptRow>, std::less<>> last_errors;
};

// The key of an idempotent call. Without `request_id` no answer is recorded.
struct CallKey {
  std::string caller;
  std::string method;
  std::string request_id;
  std::string payload_hash;
  // Not part of the key: the caller's permissions.
  bool may_change_all_jobs = true;                      // else its own alone
  std::optional<int64_t> max_open_jobs = std::nullopt;  // unset: no limit
};

// The facts about the dataset that SubmitJob needs. Another thread reads them from the blob store first.
struct DatasetInfo {
  std::string manifest_uri;
  int32_t training_shards = 0;
  spec::DatasetFacts facts;
};

struct ClaimRequest {
  std::string island_id;
  int64_t incarnation = 0;
  absl::Duration wait = absl::ZeroDuration();
  std::set<std::string> cached_uris;
  // Called before a task is granted, on the core's thread, because the claimant may have been denied access while it
  // waited. Its error becomes the answer. Empty: every claimant is allowed.
  std::function<absl::Status()> still_let_in;
};

struct ClaimAnswer {
  std::optional<spec::TaskGrant> grant;
  // Why each waiting task does not fit; empty when one was granted or none waits.
  std::vector<std::string> unmet;
};

struct Registration {
  int64_t incarnation = 0;
  int64_t store_epoch = 0;
  leases::LeaseOptions lease;
  std::string epoch_uri;  // what the island must find in its blob store
};

// The limit on islands of the caller that registers one.
struct IslandQuota {
  std::string caller;
  std::optional<int64_t> most;                             // unset: 4,000
  std::function<bool(std::string_view island_id)> counts;  // whether the caller owns an island; empty: it owns all

  bool Counts(std::string_view island_id) const { return !counts || counts(island_id); }
};

struct LeaseVerdict {
  std::string task_id;
  std::string reason;
};

struct HeartbeatAnswer {
  // Leases that are no longer valid.
  std::vector<LeaseVerdict> revoked;
  // Leases that the island must release soon, with a checkpoint.
  std::vector<LeaseVerdict> stopping;
  // The reason why the island is drained; empty: it is not.
  std::string drain_reason;
};

// An island's state for display.
struct IslandView {
  leases::Island island;
  leases::IslandActivity activity = leases::IslandActivity::kLost;
  absl::Time last_heard = absl::InfinitePast();  // InfinitePast: not since the coordinator started
  // The task of the island's lease; empty without a lease.
  jobs::Task task;
  std::string job_id;
  int64_t step = 0;
  absl::Duration step_time;
  leases::StepJudgement judgement;
};

class Core {
 public:
  using ClaimCallback = std::function<void(absl::StatusOr<ClaimAnswer>)>;
  // `last`: the job or the coordinator has ended; no further call follows.
  using JobCallback = std::function<void(absl::StatusOr<JobView>, bool last)>;
  using ModelCallback = std::function<void(absl::StatusOr<store::Model>, bool last)>;
  // Makes the encoded answer that a repeated call gets, byte for byte.
  using EncodeJob = std::function<std::string(const JobView&)>;
  using EncodeIsland = std::function<std::string(const IslandView&)>;
  using EncodeTask = std::function<std::string(const jobs::Task&)>;
  using EncodeModel = std::function<std::string(const store::Model&)>;

  // Loads the store. Attempts of an earlier store epoch end; all others continue with a grace period. `store`, `clock`
  // and `metrics` must outlive the core.
  static absl::StatusOr<std::unique_ptr<Core>> Load(store::Store* store, Clock* clock, CoreOptions options,
                                                    CoreMetrics* metrics);

  // Jobs (core_jobs.cc). The strings are encoded answers.
  absl::StatusOr<std::string> SubmitJob(const CallKey& key, const spec::JobSpec& spec, const DatasetInfo& dataset,
                                        bool validate_only, const EncodeJob& encode);
  absl::StatusOr<std::string> CancelJob(const CallKey& key, std::string_view job_id, std::string_view reason,
                                        const EncodeJob& encode);
  absl::Status DeleteJob(const CallKey& key, std::string_view job_id);
  absl::StatusOr<JobView> GetJob(std::string_view job_id);
  absl::StatusOr<store::Store::JobPage> ListJobs(int64_t before, int32_t limit);
  // Returns the answer to an earlier call with this key, or unset. INVALID_ARGUMENT (REQUEST_ID_REUSED) for another
  // payload.
  absl::StatusOr<std::optional<std::string>> FindAnswer(const CallKey& key);

  // Islands (core_islands.cc). RESOURCE_EXHAUSTED (QUOTA_EXCEEDED) if the caller already has as many islands as it may;
  // errors of leases::DecideRegister.
  absl::StatusOr<Registration> RegisterIsland(std::string_view island_id, std::string_view request_id,
                                              const leases::Capabilities& capabilities, const IslandQuota& quota = {});
  // Forgets islands that hold no lease, are not drained and were silent for a week.
  absl::Status ForgetSilentIslands();
  // Leases of another island are reported as revoked and not renewed. `step_time` belongs to the task that the island
  // holds; zero: not reported.
  absl::StatusOr<HeartbeatAnswer> Heartbeat(std::string_view island_id, int64_t incarnation, int64_t sequence,
                                            const std::vector<spec::LeaseToken>& leases,
                                            absl::Duration step_time = absl::ZeroDuration());
  // Answers through `done`: at the next Deliver if a task fits or the request does not wait, otherwise when a task fits
  // or the wait ends. Returns a ticket for CancelClaim. A second claim of the same island ends the first.
  int64_t ClaimTask(const ClaimRequest& request, ClaimCallback done);
  // Forgets the claim, which then never gets an answer. Ignores unknown tickets.
  void CancelClaim(int64_t ticket);
  // Takes back a grant with this token that did not reach its island: another island may claim the task at once, at no
  // cost to the task's budget. Does nothing if a later claim of the island was answered with the same task.
  void TakeBack(int64_t ticket, const spec::LeaseToken& token);
  // Renews the token's lease and returns its grant, as a claim would. ABORTED (STALE_ATTEMPT).
  absl::StatusOr<spec::TaskGrant> KeepLease(const spec::LeaseToken& token);

  // Operators' calls on islands (core_admin.cc). NOT_FOUND (ISLAND_UNKNOWN); the strings are encoded answers.
  //
  // Returns the islands that called since the start, are drained or hold a lease; by name.
  std::vector<IslandView> ListIslands();
  // An empty reason undrains.
  absl::StatusOr<std::string> DrainIsland(const CallKey& key, std::string_view island_id, std::string_view reason,
                                          const EncodeIsland& encode);
  // FAILED_PRECONDITION: ISLAND_DRAINED, ISLAND_LOST and ISLAND_UNFIT for `to`, and errors of jobs::MoveTask.
  absl::StatusOr<std::string> MoveTask(const CallKey& key, std::string_view task_id, std::string_view to,
                                       const EncodeTask& encode);

  // Attempts (core_attempts.cc). All are safe to repeat with the same arguments.
  //
  // Returns the island to which the token's attempt was granted, whatever its secret. Empty if this store epoch has no
  // such attempt: then the token is stale for every caller. The methods below require that the caller may act for this
  // island.
  absl::StatusOr<std::string> HolderOf(const spec::LeaseToken& token);
  absl::Status ReportProgress(const spec::LeaseToken& token, int64_t sequence, const spec::Progress& progress);
  // Returns the steps that are no longer kept.
  absl::StatusOr<std::vector<int64_t>> CommitCheckpoint(const spec::LeaseToken& token,
                                                        const spec::CommittedCheckpoint& checkpoint);
  // `progress` is the task's progress in GetJob from now on, until the job is deleted.
  absl::Status CompleteTask(const spec::LeaseToken& token, const std::vector<spec::Artifact>& outputs,
                            const spec::Progress& progress = {});
  absl::Status FailTask(const spec::LeaseToken& token, std::string_view code, std::string_view message, bool permanent);
  // `store_failed`: the blob store was the cause, so the task's budget is not charged.
  absl::Status ReleaseTask(const spec::LeaseToken& token, std::string_view reason, bool store_failed = false);
  // Returns unset if this divergence was one too many and the task has FAILED.
  absl::StatusOr<std::optional<jobs::Rollback>> RollBackTask(const spec::LeaseToken& token,
                                                             jobs::RollbackRequest request);

  // Models (core_models.cc).
  absl::StatusOr<store::Model> GetModel(std::string_view name);
  absl::StatusOr<std::vector<store::Model>> ListModels(std::string_view after, int32_t limit);
  absl::StatusOr<std::string> SetServingVersion(const CallKey& key, std::string_view name, std::string_view version,
                                                int64_t expected_generation, const EncodeModel& encode);

  // Watches (core_watches.cc). Tickets are for CancelWatch. A watch of an unknown job is answered with NOT_FOUND; a
  // watch of an unknown model waits until the model exists.
  int64_t WatchJob(std::string_view job_id, int64_t after_revision, JobCallback send);
  int64_t WatchModel(std::string_view name, int64_t after_generation, ModelCallback send);
  void CancelWatch(int64_t ticket);

  // Collection (core_collection.cc), for collector.h.
  struct CollectionFacts {
    std::vector<store::CheckpointRow> deleting;
    std::set<std::string> needed_files;
    std::set<std::string> needed_folders;
    std::vector<store::DeletedJob> deleted_jobs;
  };
  absl::StatusOr<CollectionFacts> GatherCollectionFacts();
  // Returns the store's facts about each attempt's folder.
  std::vector<jobs::AttemptFacts> FactsOf(const std::vector<jobs::AttemptFolder>& folders);
  absl::Status ForgetCheckpoint(std::string_view manifest_uri);
  absl::Status ForgetDeletedJob(std::string_view job_id);
  absl::Status ForgetOldAnswers();
  bool collection_held() const { return store_.collection_held(); }

  // Adoption after a restore (core_adoption.cc), for adoption.h.
  struct AdoptableTask {
    // A divergence of the task: checkpoints above `to_step` of this attempt and earlier ones are given up.
    struct Divergence {
      int64_t store_epoch = 0;
      int64_t attempt = 0;
      int64_t to_step = 0;
    };
    std::string task_id;
    int32_t milestone_every = 0;
    std::vector<store::CheckpointRow> rows;
    std::vector<Divergence> divergences;
  };
  // Returns every training task of an unfinished job that has all of its inputs.
  absl::StatusOr<std::vector<AdoptableTask>> AdoptableTasks();
  // Adds rows for checkpoints that were found intact and gives up those in `lost` (by manifest). The task then
  // continues from the newest remaining checkpoint; if that changes its step, a running attempt of the task ends
  // RESTORED.
  absl::Status AdoptCheckpoints(std::string_view task_id, const std::vector<store::CheckpointRow>& found,
                                const std::set<std::string>& lost);
  absl::Status ReleaseCollection();

  // Answers claims whose wait is over, sends due watches, updates gauges. The owner must call it when NextWake (on the
  // clock's monotonic time) is reached; an earlier call is harmless.
  void Tick();
  absl::Duration NextWake() const;

  // Runs the callbacks gathered so far. The owner calls it after every call of the methods above.
  void Deliver();

  // Ends every waiting claim and watch with UNAVAILABLE (COORDINATOR_STOPPING).
  void EndAllWaits();

  size_t waiting_claims() const { return claims_.size(); }
  size_t watches() const { return job_watches_.size() + model_watches_.size(); }
  int64_t store_epoch() const { return store_.epoch(); }

 private:
  struct WaitingClaim {
    ClaimRequest request;
    absl::Duration deadline;
    ClaimCallback done;
  };
  struct TaskProgress {
    int64_t attempt = 0;
    int64_t sequence = 0;
    spec::Progress progress;
  };
  struct StepTime {
    std::string task_id;
    int64_t attempt = 0;
    absl::Duration step_time;
    leases::StepJudgement judgement;
  };
  using TransactionBody = std::function<absl::Status(store::Transaction&)>;

  Core(store::Store* store, Clock* clock, CoreOptions options, CoreMetrics* metrics);
  absl::Status LoadState();
  absl::Status RestoreAttempts();
  absl::Status LoadFailures();

  absl::Duration Now() const { return clock_.Monotonic(); }
  std::string RandomHex(size_t bytes) const;

  // Runs a durable change and times it; counts and logs it if the store fails.
  absl::Status Write(std::string_view name, const TransactionBody& body);
  // Writes the changes that `effect` made to `record`, with `before` and `after` in the same transaction (either may be
  // empty), and then stores the record in memory. `name` is the transaction's.
  absl::Status Apply(std::string_view name, jobs::JobRecord record, const jobs::Effect& effect,
                     const TransactionBody& before, const TransactionBody& after);
  void TakeOver(jobs::JobRecord record, const jobs::Effect& effect);

  // The record of an unfinished job; null when there is none.
  const jobs::JobRecord* Active(std::string_view job_id) const;
  // Returns OK if the token's attempt is the active one of its task; otherwise counts and returns ABORTED
  // (STALE_ATTEMPT).
  absl::Status CheckLease(const spec::LeaseToken& token) const;
  // The record of the token's task; errors of CheckLease.
  absl::StatusOr<jobs::JobRecord> ActiveRecord(const spec::LeaseToken& token) const;
  // Whether the token's attempt already ended with `outcome`: then the call is a repeat and gets the first answer.
  absl::StatusOr<bool> EndedAs(const spec::LeaseToken& token, jobs::AttemptOutcome outcome);
  absl::Status EndAttempt(std::string_view name, const spec::LeaseToken& token, const jobs::AttemptEnd& end);
  // Returns the rollback with which the token's attempt ended.
  absl::StatusOr<std::optional<jobs::Rollback>> FindRollback(const spec::LeaseToken& token);

  // Adds the last progress of finished tasks and the newest progress of running tasks.
  JobView ViewOf(jobs::JobRecord record);
  absl::Status CheckOpenJobs(const CallKey& key) const;
  absl::Status RecordAnswer(store::Transaction& transaction, const CallKey& key, std::string response);

  // Claims (core_claims.cc).
  //
  // Answers a claim if a task fits or the claim fails and, without `ages`, also if its wait is over. `ages` limits the
  // choice to those jobs.
  void TryAnswer(int64_t ticket, const std::set<int64_t>* ages = nullptr);
  absl::StatusOr<ClaimAnswer> TryClaim(const ClaimRequest& request, const std::set<int64_t>* ages);
  absl::StatusOr<std::optional<spec::TaskGrant>> GrantTask(const leases::Island& island, std::string_view task_id);
  // Replaces the secret of an attempt that was granted before a restart; at most its island knows the old secret.
  absl::Status ReplaceSecret(const leases::Lease& lease);
  absl::StatusOr<spec::TaskGrant> GrantOf(const leases::Lease& lease);
  // Updates candidates_ for jobs that changed, leases that expired and moves that ended.
  void UpdateCandidates();
  // `until`: when to recompute the candidates even if the job does not change; InfiniteDuration: never.
  std::vector<leases::Candidate> CandidatesOf(const jobs::JobRecord& record, absl::Duration* until) const;
  // Returns the islands on which the task failed recently; empty if no other live, undrained island can run it.
  std::set<std::string> FailedIslands(const leases::Candidate& candidate) const;
  leases::Candidate CandidateOf(const jobs::JobRecord& record, const jobs::Task& task) const;
  // Renews a lease. If it had expired, its task is no longer a candidate.
  void RenewLease(std::string_view task_id);
  void ServeWaitingClaims();
  void AnswerClaim(int64_t ticket, absl::StatusOr<ClaimAnswer> answer);
  std::string WritePrefix(std::string_view task_id, int64_t attempt) const;

  absl::Status CheckCheckpoint(const spec::LeaseToken& token, const spec::CommittedCheckpoint& checkpoint) const;
  absl::Status CheckCompletion(const jobs::JobRecord& record, const jobs::Task& task, const spec::LeaseToken& token,
                               const std::vector<spec::Artifact>& outputs);
  absl::Status Publish(store::Transaction& transaction, const jobs::JobRecord& record,
                       const std::vector<spec::Artifact>& outputs);
  std::string VerdictOf(const spec::LeaseToken& token) const;

  absl::Status CheckIslandQuota(const IslandQuota& quota, std::string_view island_id) const;
  absl::Duration SilenceOf(const leases::Island& island) const;

  // Whether an operator wants the island to release the task.
  bool IsAskedFor(const jobs::Task& task) const;
  void TakeStepTime(const std::string& island_id, const spec::LeaseToken& token, absl::Duration step_time);
  void JudgeIslands();
  // Whether the island `to` can continue the task.
  absl::Status CheckTarget(const jobs::JobRecord& record, const jobs::Task& task, std::string_view to);
  IslandView ViewOf(const leases::Island& island);

  void JobChanged(std::string_view job_id) { job_watches_.MarkDirty(job_id); }
  void SendDueWatches();
  void SendJob(WatchList::Watch& watch);
  void SendModel(WatchList::Watch& watch);
  // Returns all models if `name` is empty, and none if the model does not exist yet.
  absl::StatusOr<std::vector<store::Model>> WatchedModels(const std::string& name);
  void UpdateGauges();

  store::Store& store_;
  Clock& clock_;
  const CoreOptions options_;
  CoreMetrics& metrics_;
  const absl::Duration start_;

  std::map<std::string, jobs::JobRecord, std::less<>> active_;
  // Age per unfinished job, for claims: the oldest job has the lowest.
  std::map<std::string, int64_t, std::less<>> age_of_job_;
  int64_t next_age_ = 1;
  std::map<std::string, leases::Island, std::less<>> islands_;
  leases::LeaseTable leases_;
  std::map<std::string, TaskProgress, std::less<>> progress_;

  leases::CandidateIndex candidates_;
  std::set<std::string, std::less<>> stale_jobs_;                  // whose candidates may have changed
  absl::Duration candidates_until_ = absl::ZeroDuration();         // the next expiry of a lease or of jobs_until_
  std::map<std::string, absl::Duration, std::less<>> jobs_until_;  // by job: `until` of CandidatesOf
  struct IslandFailures {
    absl::Time last = absl::InfinitePast();
    int32_t errors = 0;  // that attempts reported
    int32_t losses = 0;  // processes that ended before they committed anything
  };
  // By task and island, from this process's time; errors also from earlier processes.
  std::map<std::string, std::map<std::string, IslandFailures>, std::less<>> failures_;
  std::set<int64_t> new_candidates_;  // ages of jobs not yet offered to waiting claims
  bool offer_everything_ = false;     // to waiting claims: not the candidates but the eligible islands changed
  std::map<std::string, StepTime, std::less<>> step_times_;  // by island

  int64_t next_ticket_ = 1;
  std::map<int64_t, WaitingClaim> claims_;
  std::map<std::string, int64_t, std::less<>> claim_of_island_;
  // By leased task: the last claim that was answered with it. Answers from before a restart are missing.
  std::map<std::string, int64_t, std::less<>> answered_claims_;
  WatchList job_watches_;
  WatchList model_watches_;
  std::map<int64_t, JobCallback> job_callbacks_;
  std::map<int64_t, ModelCallback> model_callbacks_;
  std::vector<std::function<void()>> outbox_;
  absl::Duration gauges_due_ = absl::ZeroDuration();
  std::string write_failure_;  // reason of the last failure that was logged
  absl::Duration write_failure_logged_ = absl::ZeroDuration();
};

}  // namespace atl::coordinator
