// The coordinator's durable state behind a small interface; sqlite_store.h and pg_store.h implement it.
//
// Writes are transactions: everything in the body of Write happens or nothing, and is on disk once Write returned OK.
// Islands' writes are fenced inside the transaction that they guard (CheckFence).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/spec/task.h"
#include "coordinator/jobs/job.h"
#include "coordinator/leases/membership.h"

namespace atl::store {

struct AttemptRow {
  std::string task_id;
  int64_t attempt = 0;
  int64_t store_epoch = 0;
  std::string island_id;
  int64_t incarnation = 0;
  std::string secret_sha256;  // leases::SecretHash; the secret itself is never written
  jobs::AttemptOutcome outcome = jobs::AttemptOutcome::kActive;
  std::string message;
  absl::Time start_time = absl::UnixEpoch();
  absl::Time end_time = absl::InfinitePast();
  std::string code;  // as in jobs::EndedAttempt
  bool operator==(const AttemptRow&) const = default;
};

// COMMITTED -> [SUPERSEDED ->] DELETING -> no row. Only a committed one may be resumed from. A superseded one lies
// above a step that the task went back to, and stays until the task has committed past it.
enum class CheckpointState : uint8_t { kCommitted = 1, kDeleting, kSuperseded };

struct CheckpointRow {
  std::string task_id;
  int64_t attempt = 0;
  spec::CommittedCheckpoint checkpoint;
  CheckpointState state = CheckpointState::kCommitted;
  absl::Time commit_time = absl::UnixEpoch();
  bool operator==(const CheckpointRow&) const = default;
};

struct ModelVersionRow {
  std::string name;
  std::string version;
  std::string job_id;
  std::string uri;     // folder of model_index.json
  std::string digest;  // SHA-256 of model_index.json
  int32_t experts = 0;
  absl::Time publish_time = absl::UnixEpoch();
  bool operator==(const ModelVersionRow&) const = default;
};

struct ServingRow {
  std::string name;
  std::string version;
  int64_t generation = 0;
  absl::Time change_time = absl::UnixEpoch();
  std::string cause;  // "published" or "set by <caller>"
  bool operator==(const ServingRow&) const = default;
};

struct Model {
  std::string name;
  ServingRow serving;
  std::vector<ModelVersionRow> versions;  // newest first
  bool operator==(const Model&) const = default;
};

// A creating call and its answer.
struct Answer {
  std::string caller;
  std::string method;
  std::string request_id;
  std::string payload_hash;
  std::string response;  // serialized
  absl::Time time = absl::UnixEpoch();
};

// A job that was deleted by its user but still has files.
struct DeletedJob {
  std::string job_id;
  absl::Time delete_time = absl::UnixEpoch();
};

// Valid inside the body of Store::Write only. Any error that a method returns must be returned by the body.
class Transaction {
 public:
  virtual ~Transaction() = default;

  // OK when (store epoch, attempt, secret) are those of the task's active attempt; ABORTED (STALE_ATTEMPT) otherwise.
  virtual absl::Status CheckFence(const spec::LeaseToken& token) = 0;

  // The next revision of the store; the same for the rest of the transaction.
  virtual absl::StatusOr<int64_t> NextRevision() = 0;

  // Inserts the job and all of its tasks.
  virtual absl::Status InsertJob(const jobs::JobRecord& record) = 0;
  // State, times, message, version and revision of a job that exists.
  virtual absl::Status UpdateJob(const jobs::Job& job) = 0;
  // Everything but kind, index and dependencies of a task that exists; writes its outputs.
  virtual absl::Status UpdateTask(const jobs::Task& task) = 0;
  // The last progress of a task that is being completed.
  virtual absl::Status InsertFinalProgress(std::string_view task_id, const spec::Progress& progress) = 0;
  // Forgets the job but for a tombstone; model versions stay.
  virtual absl::Status DeleteJob(std::string_view job_id, absl::Time now) = 0;
  // Forgets the tombstone too: its files are gone.
  virtual absl::Status ForgetDeletedJob(std::string_view job_id) = 0;

  virtual absl::Status InsertAttempt(const AttemptRow& attempt) = 0;
  // Another secret for an attempt that is active: the one of before is void.
  virtual absl::Status ReplaceSecret(std::string_view task_id, int64_t attempt, std::string_view secret_sha256) = 0;
  virtual absl::Status EndAttempt(const jobs::EndedAttempt& ended, absl::Time now) = 0;
  // The newest rollback of the task.
  virtual absl::Status InsertRollback(std::string_view task_id, const jobs::Rollback& rollback) = 0;

  virtual absl::Status InsertCheckpoint(const CheckpointRow& checkpoint) = 0;
  virtual absl::StatusOr<std::vector<CheckpointRow>> Checkpoints(std::string_view task_id) = 0;
  virtual absl::Status MarkCheckpoint(std::string_view manifest_uri, CheckpointState state) = 0;
  // FAILED_PRECONDITION (CHECKPOINT_NOT_DELETING) for a row that is still COMMITTED.
  virtual absl::Status DeleteCheckpoint(std::string_view manifest_uri) = 0;

  // Everything but whether it is drained.
  virtual absl::Status PutIsland(const leases::Island& island, absl::Time now) = 0;
  virtual absl::Status DeleteIsland(std::string_view island_id) = 0;
  // Why an island that exists is drained; empty: it is not.
  virtual absl::Status SetIslandDrain(std::string_view island_id, std::string_view reason) = 0;

  virtual absl::Status InsertModelVersion(const ModelVersionRow& version) = 0;
  // Unset when the model has none yet.
  virtual absl::StatusOr<std::optional<ServingRow>> Serving(std::string_view name) = 0;
  virtual absl::StatusOr<bool> HasModelVersion(std::string_view name, std::string_view version) = 0;
  // Also appends to the history.
  virtual absl::Status PutServing(const ServingRow& row) = 0;

  virtual absl::StatusOr<std::optional<Answer>> FindAnswer(std::string_view caller, std::string_view method,
                                                           std::string_view request_id) = 0;
  virtual absl::Status InsertAnswer(const Answer& answer) = 0;
  virtual absl::Status DeleteAnswersBefore(absl::Time time) = 0;
};

// Not thread-safe: owned by the coordinator's core, behind its mutex. Every method may block on the disk.
// Errors: UNAVAILABLE (STORE_LOCKED, STORE_FULL, STORE_IO, STORE_UNREACHABLE, STORE_OUTCOME_UNKNOWN),
// FAILED_PRECONDITION (STORE_READ_ONLY), DATA_LOSS (STORE_CORRUPT); INTERNAL (STORE_ERROR) for what should not happen.
class Store {
 public:
  virtual ~Store() = default;

  // Runs `body` in one transaction called `name`, which failpoints and messages use. Rolls back when body or commit
  // fails.
  virtual absl::Status Write(std::string_view name, const std::function<absl::Status(Transaction&)>& body) = 0;

  // Identity of this store's file, for ever.
  virtual const std::string& store_id() const = 0;
  // First half of every fencing token; 0 before AdoptEpoch was called on a new store.
  virtual int64_t epoch() const = 0;
  // Takes a higher epoch: every token given out before is void. After MarkRestored it also holds collection, from then
  // on and over restarts.
  virtual absl::Status AdoptEpoch(int64_t epoch) = 0;

  // Whether the store was taken over from a coordinator that did not let go of it: its next epoch must be a higher one.
  virtual bool promoted() const = 0;

  // Says, durably, that this file is a copy from the past: it gets an identity of its own, so that the store it was
  // copied from finds out that it was replaced, and its next epoch holds collection. A backup is so marked already.
  virtual absl::Status MarkRestored() = 0;
  // Whether the file is a copy from the past that has not taken its own epoch yet.
  virtual bool restored() const = 0;
  // The epoch that this store took when it was last restored; 0 when it never was. What attempts of lower epochs wrote
  // may have been committed without this store knowing.
  virtual int64_t restored_epoch() const = 0;
  // Whether nothing may be deleted from the blob store: since the last restore nobody has had checkpoints taken back.
  virtual bool collection_held() const = 0;
  virtual absl::Status ReleaseCollection() = 0;

  virtual absl::StatusOr<std::vector<jobs::JobRecord>> UnfinishedJobs() = 0;
  // NOT_FOUND (JOB_UNKNOWN).
  virtual absl::StatusOr<jobs::JobRecord> GetJob(std::string_view job_id) = 0;

  // Of every completed task of the job that reported any, by task.
  virtual absl::StatusOr<std::map<std::string, spec::Progress, std::less<>>> FinalProgress(std::string_view job_id) = 0;

  struct JobPage {
    std::vector<jobs::Job> jobs;
    int64_t next = 0;  // pass as `before` for the next page; 0 at the end
  };
  // Newest first; `before` 0 starts at the newest. Fewer than `limit`, and at least one, where specs are so long that a
  // message would not hold them.
  virtual absl::StatusOr<JobPage> ListJobs(int64_t before, int32_t limit) = 0;

  virtual absl::StatusOr<std::vector<AttemptRow>> ActiveAttempts() = 0;
  // Unset when there was never such an attempt.
  virtual absl::StatusOr<std::optional<AttemptRow>> GetAttempt(std::string_view task_id, int64_t attempt) = 0;
  virtual absl::StatusOr<std::vector<AttemptRow>> Attempts(std::string_view task_id) = 0;

  // Of one task in step order, or of all when empty.
  virtual absl::StatusOr<std::vector<CheckpointRow>> Checkpoints(std::string_view task_id) = 0;
  // URIs of every task's outputs.
  virtual absl::StatusOr<std::vector<std::string>> ArtifactUris() = 0;
  virtual absl::StatusOr<std::vector<DeletedJob>> DeletedJobs() = 0;

  virtual absl::StatusOr<std::vector<leases::Island>> Islands() = 0;

  // NOT_FOUND (MODEL_UNKNOWN).
  virtual absl::StatusOr<Model> GetModel(std::string_view name) = 0;
  // By name, those after `after`.
  virtual absl::StatusOr<std::vector<Model>> ListModels(std::string_view after, int32_t limit) = 0;
  // Oldest first.
  virtual absl::StatusOr<std::vector<ServingRow>> ServingHistory(std::string_view name) = 0;
};

}  // namespace atl::store
