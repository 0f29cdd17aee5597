// Transaction over a database. Private to coordinator/store.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/store/sql_database.h"
#include "coordinator/store/store.h"

namespace atl::store {

class SqlTransaction : public Transaction {
 public:
  SqlTransaction(Database* database, int64_t store_epoch) : database_(*database), store_epoch_(store_epoch) {}

  absl::Status CheckFence(const spec::LeaseToken& token) override;
  absl::StatusOr<int64_t> NextRevision() override;
  absl::Status InsertJob(const jobs::JobRecord& record) override;
  absl::Status UpdateJob(const jobs::Job& job) override;
  absl::Status UpdateTask(const jobs::Task& task) override;
  absl::Status InsertFinalProgress(std::string_view task_id, const spec::Progress& progress) override;
  absl::Status DeleteJob(std::string_view job_id, absl::Time now) override;
  absl::Status ForgetDeletedJob(std::string_view job_id) override;
  absl::Status InsertAttempt(const AttemptRow& attempt) override;
  absl::Status ReplaceSecret(std::string_view task_id, int64_t attempt, std::string_view secret_sha256) override;
  absl::Status EndAttempt(const jobs::EndedAttempt& ended, absl::Time now) override;
  absl::Status InsertRollback(std::string_view task_id, const jobs::Rollback& rollback) override;
  absl::Status InsertCheckpoint(const CheckpointRow& checkpoint) override;
  absl::StatusOr<std::vector<CheckpointRow>> Checkpoints(std::string_view task_id) override;
  absl::Status MarkCheckpoint(std::string_view manifest_uri, CheckpointState state) override;
  absl::Status DeleteCheckpoint(std::string_view manifest_uri) override;
  absl::Status PutIsland(const leases::Island& island, absl::Time now) override;
  absl::Status DeleteIsland(std::string_view island_id) override;
  absl::Status SetIslandDrain(std::string_view island_id, std::string_view reason) override;
  absl::Status InsertModelVersion(const ModelVersionRow& version) override;
  absl::StatusOr<std::optional<ServingRow>> Serving(std::string_view name) override;
  absl::StatusOr<bool> HasModelVersion(std::string_view name, std::string_view version) override;
  absl::Status PutServing(const ServingRow& row) override;
  absl::StatusOr<std::optional<Answer>> FindAnswer(std::string_view caller, std::string_view method,
                                                   std::string_view request_id) override;
  absl::Status InsertAnswer(const Answer& answer) override;
  absl::Status DeleteAnswersBefore(absl::Time time) override;

 private:
  // Runs an UPDATE or DELETE that must change exactly one row.
  absl::Status ChangeOne(Statement& statement, std::string_view what);
  absl::Status WriteOutputs(const jobs::Task& task);

  Database& database_;
  const int64_t store_epoch_;
  std::optional<int64_t> revision_;
};

}  // namespace atl::store
