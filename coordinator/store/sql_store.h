// Store over any Database; sqlite_store.h opens one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/store/sql_database.h"
#include "coordinator/store/store.h"

namespace atl::store {

// Called when the process may not go on with what it has in memory: the answer to a commit is missing
// (STORE_OUTCOME_UNKNOWN), or another coordinator has the store (STORE_SUPERSEDED). May be called on any thread. If it
// is empty or returns, every later Write fails with the same error.
using OnStoreLost = std::function<void(const absl::Status& why)>;

class SqlStore : public Store {
 public:
  absl::Status Write(std::string_view name, const std::function<absl::Status(Transaction&)>& body) override;
  const std::string& store_id() const override { return store_id_; }
  int64_t epoch() const override { return epoch_; }
  absl::Status AdoptEpoch(int64_t epoch) override;
  absl::Status MarkRestored() override;
  bool promoted() const override { return false; }
  bool restored() const override { return restored_; }
  int64_t restored_epoch() const override { return restored_epoch_; }
  bool collection_held() const override { return collection_held_; }
  absl::Status ReleaseCollection() override;

  absl::StatusOr<std::vector<jobs::JobRecord>> UnfinishedJobs() override;
  absl::StatusOr<jobs::JobRecord> GetJob(std::string_view job_id) override;
  absl::StatusOr<std::map<std::string, spec::Progress, std::less<>>> FinalProgress(std::string_view job_id) override;
  absl::StatusOr<JobPage> ListJobs(int64_t before, int32_t limit) override;
  absl::StatusOr<std::vector<AttemptRow>> ActiveAttempts() override;
  absl::StatusOr<std::optional<AttemptRow>> GetAttempt(std::string_view task_id, int64_t attempt) override;
  absl::StatusOr<std::vector<AttemptRow>> Attempts(std::string_view task_id) override;
  absl::StatusOr<std::vector<CheckpointRow>> Checkpoints(std::string_view task_id) override;
  absl::StatusOr<std::vector<std::string>> ArtifactUris() override;
  absl::StatusOr<std::vector<DeletedJob>> DeletedJobs() override;
  absl::StatusOr<std::vector<leases::Island>> Islands() override;
  absl::StatusOr<Model> GetModel(std::string_view name) override;
  absl::StatusOr<std::vector<Model>> ListModels(std::string_view after, int32_t limit) override;
  absl::StatusOr<std::vector<ServingRow>> ServingHistory(std::string_view name) override;

 protected:
  // `name` stands in messages.
  SqlStore(std::string name, OnStoreLost on_lost) : name_(std::move(name)), on_lost_(std::move(on_lost)) {}

  // Migrates the database, makes sure that it can be written, and reads what it says of itself.
  absl::Status Load(std::unique_ptr<Database> database);
  // Before what the database needs is let go of.
  void CloseDatabase() { database_.reset(); }
  Database& database() { return *database_; }

 private:
  absl::Status LoadMeta();
  absl::StatusOr<int64_t> MetaNumber(std::string_view key);
  // The same error; when it says that the store is lost, after on_lost.
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
