// The coordinator's durable state over any Database; sqlite_store.h and pg_store.h open one.
//
// Writes are transactions: the body of Write takes effect completely or not at all, and is on disk once Write returned
// OK. Islands' writes are fenced inside the transaction that they guard (CheckFence).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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

class Database;
class Statement;

struct AttemptRow {
  std::string task_id;
  int64_t attempt = 0;
  int64_t store_epoch = 0;
  std::string island_id;
  int64_t incarnation = 0;
  std::string secret_sha256;  // leases::SecretHash; the secret itself is never stored
  jobs::AttemptOutcome outcome = jobs::AttemptOutcome::kActive;
  std::string message;
  absl::Time start_time = absl::UnixEpoch();
  absl::Time end_time = absl::InfinitePast();
  std::string code;  // as in jobs::EndedAttempt
  bool operator==(const AttemptRow&) const = default;
};

// COMMITTED -> [SUPERSEDED ->] DELETING -> no row. A task resumes only from a committed checkpoint. A superseded one
// lies above a step to which the task went back, and stays until the task has committed past it.
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

// A job that its user deleted but that still has files.
struct DeletedJob {
  std::string job_id;
  absl::Time delete_time = absl::UnixEpoch();
};

// Valid inside the body of Store::Write only. Any error that a method returns must be returned by the body.
class Transaction {
 public:
  Transaction(Database* database, int64_t store_epoch) : database_(*database), store_epoch_(store_epoch) {}

  // Returns OK when (store epoch, attempt, secret) are those of the task's active attempt, otherwise ABORTED
  // (STALE_ATTEMPT).
  absl::Status CheckFence(const spec::LeaseToken& token);

  // Returns the next revision of the store; the same for the rest of the transaction.
  absl::StatusOr<int64_t> NextRevision();

  // Inserts the job and all of its tasks.
  absl::Status InsertJob(const jobs::JobRecord& record);
  // Writes state, times, message, version and revision of an existing job.
  absl::Status UpdateJob(const jobs::Job& job);
  // Writes everything but kind, index and dependencies of an existing task, and its outputs.
  absl::Status UpdateTask(const jobs::Task& task);
  // Writes the last progress of a task that is being completed.
  absl::Status InsertFinalProgress(std::string_view task_id, const spec::Progress& progress);
  // Deletes the job but keeps a tombstone; model versions stay.
  absl::Status DeleteJob(std::string_view job_id, absl::Time now);
  // Deletes the tombstone too, once the job's files are gone.
  absl::Status ForgetDeletedJob(std::string_view job_id);

  absl::Status InsertAttempt(const AttemptRow& attempt);
  // Replaces the secret of an active attempt: the previous one is void.
  absl::Status ReplaceSecret(std::string_view task_id, int64_t attempt, std::string_view secret_sha256);
  absl::Status EndAttempt(const jobs::EndedAttempt& ended, absl::Time now);
  // Writes the newest rollback of the task.
  absl::Status InsertRollback(std::string_view task_id, const jobs::Rollback& rollback);

  absl::Status InsertCheckpoint(const CheckpointRow& checkpoint);
  absl::StatusOr<std::vector<CheckpointRow>> Checkpoints(std::string_view task_id);
  absl::Status MarkCheckpoint(std::string_view manifest_uri, CheckpointState state);
  // FAILED_PRECONDITION (CHECKPOINT_NOT_DELETING) for a row that is still COMMITTED.
  absl::Status DeleteCheckpoint(std::string_view manifest_uri);

  // Writes everything but whether the island is drained.
  absl::Status PutIsland(const leases::Island& island, absl::Time now);
  absl::Status DeleteIsland(std::string_view island_id);
  // Writes why an existing island is drained; empty: it is not.
  absl::Status SetIslandDrain(std::string_view island_id, std::string_view reason);

  absl::Status InsertModelVersion(const ModelVersionRow& version);
  // Returns unset when the model has no serving version yet.
  absl::StatusOr<std::optional<ServingRow>> Serving(std::string_view name);
  absl::StatusOr<bool> HasModelVersion(std::string_view name, std::string_view version);
  // Also appends to the history.
  absl::Status PutServing(const ServingRow& row);

  absl::StatusOr<std::optional<Answer>> FindAnswer(std::string_view caller, std::string_view method,
                                                   std::string_view request_id);
  absl::Status InsertAnswer(const Answer& answer);
  absl::Status DeleteAnswersBefore(absl::Time time);

 private:
  // Runs an UPDATE or DELETE that must change exactly one row.
  absl::Status ChangeOne(Statement& statement, std::string_view what);
  absl::Status WriteOutputs(const jobs::Task& task);

  Database& database_;
  const int64_t store_epoch_;
  std::optional<int64_t> revision_;
};

// Called when the process may not continue with its memory: the answer to a commit is missing (STORE_OUTCOME_UNKNOWN),
// or another coordinator has the store (STORE_SUPERSEDED). May be called on any thread. If it is empty or returns,
// every later Write fails with the same error.
using OnStoreLost = std::function<void(const absl::Status& why)>;

// Not thread-safe: owned by the coordinator's core, behind its mutex. Every method may block on the disk.
// Errors: UNAVAILABLE (STORE_LOCKED, STORE_FULL, STORE_IO, STORE_UNREACHABLE, STORE_OUTCOME_UNKNOWN),
// FAILED_PRECONDITION (STORE_READ_ONLY), DATA_LOSS (STORE_CORRUPT); INTERNAL (STORE_ERROR) for what should not happen.
class Store {
 public:
  virtual ~Store();

  // Runs `body` in one transaction called `name`, which failpoints and messages use. Rolls back when body or commit
  // fails.
  absl::Status Write(std::string_view name, const std::function<absl::Status(Transaction&)>& body);

  // The permanent identity of this store's file.
  const std::string& store_id() const { return store_id_; }
  // First half of every fencing token; 0 before AdoptEpoch was called on a new store.
  int64_t epoch() const { return epoch_; }
  // Takes a higher epoch: every earlier token is void. After MarkRestored it also holds collection, from then on and
  // over restarts.
  virtual absl::Status AdoptEpoch(int64_t epoch);

  // Whether the store was taken over from a coordinator that did not release it: its next epoch must be higher.
  virtual bool promoted() const { return false; }

  // Records, durably, that this file is a copy from the past. It gets its own identity, so that the original store
  // detects that it was replaced, and its next epoch holds collection. A backup is already marked so.
  absl::Status MarkRestored();
  // Whether the file is a copy from the past that has not taken its own epoch yet.
  bool restored() const { return restored_; }
  // The epoch that this store took when it was last restored; 0 if it never was. Attempts of lower epochs may have
  // committed writes that this store does not know.
  int64_t restored_epoch() const { return restored_epoch_; }
  // Whether nothing may be deleted from the blob store, because no adoption of checkpoints followed the last restore.
  bool collection_held() const { return collection_held_; }
  absl::Status ReleaseCollection();

  absl::StatusOr<std::vector<jobs::JobRecord>> UnfinishedJobs();
  // NOT_FOUND (JOB_UNKNOWN).
  absl::StatusOr<jobs::JobRecord> GetJob(std::string_view job_id);

  // Returns the last progress, by task, of every completed task of the job that reported any.
  absl::StatusOr<std::map<std::string, spec::Progress, std::less<>>> FinalProgress(std::string_view job_id);

  struct JobPage {
    std::vector<jobs::Job> jobs;
    int64_t next = 0;  // pass as `before` for the next page; 0 at the end
  };
  // Returns the newest first; `before` 0 starts at the newest. Returns fewer than `limit`, but at least one, if the
  // specs are too long for one message.
  absl::StatusOr<JobPage> ListJobs(int64_t before, int32_t limit);

  absl::StatusOr<std::vector<AttemptRow>> ActiveAttempts();
  // Returns unset if the attempt never existed.
  absl::StatusOr<std::optional<AttemptRow>> GetAttempt(std::string_view task_id, int64_t attempt);
  absl::StatusOr<std::vector<AttemptRow>> Attempts(std::string_view task_id);

  // Returns the checkpoints of one task in step order, or of all tasks if `task_id` is empty.
  absl::StatusOr<std::vector<CheckpointRow>> Checkpoints(std::string_view task_id);
  // Returns the URIs of every task's outputs.
  absl::StatusOr<std::vector<std::string>> ArtifactUris();
  absl::StatusOr<std::vector<DeletedJob>> DeletedJobs();

  absl::StatusOr<std::vector<leases::Island>> Islands();

  // NOT_FOUND (MODEL_UNKNOWN).
  absl::StatusOr<Model> GetModel(std::string_view name);
  // Returns the models after `after`, by name.
  absl::StatusOr<std::vector<Model>> ListModels(std::string_view after, int32_t limit);
  // Oldest first.
  absl::StatusOr<std::vector<ServingRow>> ServingHistory(std::string_view name);

 protected:
  // `name` stands in messages.
  Store(std::string name, OnStoreLost on_lost);

  // Migrates the database, checks that it can be written, and reads its metadata.
  absl::Status Load(std::unique_ptr<Database> database);
  // Must be called before the resources of the database are released.
  void CloseDatabase();

 private:
  absl::Status LoadMeta();
  absl::StatusOr<int64_t> MetaNumber(std::string_view key);
  // Returns the same error; calls on_lost first if the error means that the store is lost.
  absl::Status Judge(const absl::Status& status);

  const std::string name_;
  const OnStoreLost on_lost_;
  std::unique_ptr<Database> database_;
  absl::Status lost_;
  std::string store_id_;
  int64_t epoch_ = 0;
  bool restored_ = false;
  int64_t restored_epoch_ = 0;
  bool collection_held_ = false;
};

}  // namespace atl::store
