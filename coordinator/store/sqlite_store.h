// Store in one SQLite file (WAL, synchronous FULL). One process at a time: a lock file beside it refuses a second.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/store.h"

namespace atl::store {

struct SqliteStoreOptions {
  std::string path;
  // How long to wait for another process that holds the database, for example a backup.
  absl::Duration busy_timeout = absl::Seconds(5);
};

class SqliteStore : public Store {
 public:
  // Opens, checks and migrates the file, creating it and its folder when absent. FAILED_PRECONDITION (STORE_IN_USE)
  // while another coordinator has it; else as Store and Migrate.
  static absl::StatusOr<std::unique_ptr<SqliteStore>> Open(SqliteStoreOptions options);
  ~SqliteStore() override;

  absl::Status Write(std::string_view name, const std::function<absl::Status(Transaction&)>& body) override;
  const std::string& store_id() const override { return store_id_; }
  int64_t epoch() const override { return epoch_; }
  absl::Status AdoptEpoch(int64_t epoch) override;
  absl::Status MarkRestored() override;
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

 private:
  SqliteStore(SqliteStoreOptions options, int lock_descriptor)
      : options_(std::move(options)), lock_descriptor_(lock_descriptor) {}

  absl::Status Prepare();
  absl::Status LoadMeta();
  absl::StatusOr<int64_t> MetaNumber(std::string_view key);

  const SqliteStoreOptions options_;
  const int lock_descriptor_;
  std::unique_ptr<Database> database_;
  std::string store_id_;
  int64_t epoch_ = 0;
  bool restored_ = false;
  int64_t restored_epoch_ = 0;
  bool collection_held_ = false;
};

}  // namespace atl::store
