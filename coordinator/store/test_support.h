// Shared by the store's tests.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/jobs/task_graph.h"
#include "coordinator/leases/attempt_secret.h"
#include "coordinator/store/sqlite_store.h"
#include "gtest/gtest.h"

namespace atl::store {

inline const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

// A folder that is deleted at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = testing::TempDir() + "atoll_store_XXXXXX";
    path_ = mkdtemp(path.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::unique_ptr<SqliteStore> OpenOrDie(const std::string& path) {
  auto store = SqliteStore::Open({path, absl::Milliseconds(50)});
  if (!store.ok()) {
    ADD_FAILURE() << store.status();
    std::abort();
  }
  return *std::move(store);
}

inline jobs::JobRecord SmallJob(const std::string& job_id) {
  jobs::JobRecord record;
  record.job.job_id = job_id;
  record.job.spec.model_name = "digits";
  record.job.spec.dataset = "digits";
  record.job.spec.experts = 2;
  record.job.spec.training.steps = 100;
  record.job.spec.router_training.steps = 100;
  record.job.create_time = kNow;
  record.job.dataset_manifest_uri = "file:///b/datasets/digits/manifest.json";
  record.tasks = jobs::ExpandTasks(job_id, record.job.spec, 2);
  return record;
}

// The secret of every attempt that the tests make.
inline const std::string kSecret("s\0cret", 6);

inline AttemptRow ActiveAttempt(const std::string& task_id, int64_t attempt, const std::string& island_id,
                                int64_t store_epoch) {
  AttemptRow row;
  row.task_id = task_id;
  row.attempt = attempt;
  row.store_epoch = store_epoch;
  row.island_id = island_id;
  row.incarnation = 1;
  row.secret_sha256 = leases::SecretHash(kSecret);
  row.start_time = kNow;
  return row;
}

inline spec::LeaseToken TokenOf(const AttemptRow& row) {
  return {row.task_id, row.store_epoch, row.attempt, kSecret};
}

}  // namespace atl::store
