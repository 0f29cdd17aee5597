#include "tests/invariants/story.h"

#include <stdlib.h>

#include <filesystem>
#include <memory>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/store/sqlite_backup.h"
#include "coordinator/store/sqlite_store.h"

namespace atl::testing_invariants {
namespace {

constexpr int32_t kPage = 1000;

// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() : path_(std::filesystem::temp_directory_path() / "atoll-story-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~ScratchFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::Status ReadJobs(store::Store& store, Story* story) {
  int64_t before = 0;
  do {
    ATOLL_ASSIGN_OR_RETURN(const store::Store::JobPage page, store.ListJobs(before, kPage));
    for (const jobs::Job& job : page.jobs) {
      ATOLL_ASSIGN_OR_RETURN(story->jobs.emplace_back(), store.GetJob(job.job_id));
    }
    before = page.next;
  } while (before != 0);
  for (const jobs::JobRecord& record : story->jobs) {
    for (const jobs::Task& task : record.tasks) {
      ATOLL_ASSIGN_OR_RETURN(story->attempts[task.task_id], store.Attempts(task.task_id));
      ATOLL_ASSIGN_OR_RETURN(story->checkpoints[task.task_id], store.Checkpoints(task.task_id));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModels(store::Store& store, Story* story) {
  std::string after;
  for (;;) {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<store::Model> page, store.ListModels(after, kPage));
    if (page.empty()) return absl::OkStatus();
    after = page.back().name;
    for (const store::Model& model : page) {
      ATOLL_ASSIGN_OR_RETURN(story->serving_history[model.name], store.ServingHistory(model.name));
      story->models.push_back(model);
    }
  }
}

}  // namespace

absl::StatusOr<Story> ReadStory(store::Store& store) {
  Story story{.store_id = store.store_id(), .epoch = store.epoch(), .restored_epoch = store.restored_epoch()};
  ATOLL_RETURN_IF_ERROR(ReadJobs(store, &story));
  ATOLL_RETURN_IF_ERROR(ReadModels(store, &story));
  return story;
}

absl::StatusOr<Story> ReadStoryOf(const std::string& store_path) {
  const ScratchFolder scratch;
  if (scratch.path().empty()) return absl::ErrnoToStatus(errno, "no temporary folder for a copy of the store");
  const std::string copy = scratch.path() + "/store.db";
  ATOLL_ASSIGN_OR_RETURN(const store::BackupFacts facts, store::BackUpStore(store_path, copy));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<store::SqliteStore> store, store::SqliteStore::Open({.path = copy}));
  ATOLL_ASSIGN_OR_RETURN(Story story, ReadStory(*store));
  story.store_id = facts.store_id;
  return story;
}

}  // namespace atl::testing_invariants
