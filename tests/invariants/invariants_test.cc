// The checker finds nothing in a store that is as it should be, and every rule fires on one that was broken on purpose.
#include "tests/invariants/invariants.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include "common/base/status_macros.h"
#include "common/formats/checkpoint.h"
#include "common/formats/model_index.h"
#include "common/spec/data_cursor.h"
#include "common/storage/testing.h"
#include "coordinator/core/epoch.h"
#include "coordinator/jobs/job_machine.h"
#include "coordinator/jobs/task_graph.h"
#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/sqlite_store.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::testing_invariants {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 100;
constexpr int32_t kBatch = 4;
const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

// A store and its files after one job that has succeeded, in which one expert's first attempt was lost after a commit
// and another's diverged and went back, and one job that goes on.
class StoryBuilder {
 public:
  StoryBuilder() : store_(store::SqliteStore::Open({.path = folder_.File("store.db")}).value()) {
    EXPECT_TRUE(coordinator::EstablishEpoch(*blobs_.get(), *store_, false).ok());
    RunJob("done");
    StartJob("open");
    store_.reset();
  }

  std::string store_path() const { return folder_.File("store.db"); }
  storage::BlobStore* blobs() { return blobs_.get(); }
  std::string PathOf(const std::string& path) { return blobs_.PathOf(blobs_->UriOf(path)); }
  std::string CheckpointPath(const std::string& task, int64_t attempt, int64_t step, const std::string& file) {
    return PathOf(storage::CheckpointFolder(fmt::format("jobs/done/{}/1-{}", task, attempt), step, "x") + file);
  }

  Acknowledged acknowledged;

 private:
  void Write(const jobs::JobRecord& record, const absl::StatusOr<jobs::Effect>& effect,
             const std::function<absl::Status(store::Transaction&)>& more) {
    ASSERT_TRUE(effect.ok()) << effect.status();
    const absl::Status status = store_->Write("test", [&](store::Transaction& transaction) -> absl::Status {
      ATOLL_RETURN_IF_ERROR(transaction.UpdateJob(record.job));
      for (const std::string& task_id : effect->changed_tasks) {
        ATOLL_RETURN_IF_ERROR(transaction.UpdateTask(*jobs::FindTask(record, task_id)));
      }
      for (const jobs::EndedAttempt& ended : effect->ended_attempts) {
        ATOLL_RETURN_IF_ERROR(transaction.EndAttempt(ended, kNow));
      }
      return more ? more(transaction) : absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
  }

  jobs::JobRecord Insert(const std::string& job_id) {
    jobs::JobRecord record;
    record.job.job_id = job_id;
    record.job.spec.model_name = "digits";
    record.job.spec.dataset = "digits";
    record.job.spec.experts = 2;
    record.job.spec.training.steps = record.job.spec.router_training.steps = kSteps;
    record.job.spec.training.batch_size = record.job.spec.router_training.batch_size = kBatch;
    record.job.create_time = kNow;
    record.job.dataset_manifest_uri = blobs_->UriOf("datasets/digits/manifest.json");
    record.tasks = jobs::ExpandTasks(job_id, record.job.spec, 1);
    EXPECT_TRUE(store_->Write("insert", [&](store::Transaction& t) { return t.InsertJob(record); }).ok());
    acknowledged.jobs.insert(job_id);
    return record;
  }

  void Grant(jobs::JobRecord* record, const jobs::Task& task, const std::string& island) {
    const std::string task_id = task.task_id;
    const int64_t attempt = task.attempt + 1;
    const auto effect = jobs::Grant(*record, task_id, attempt, island);
    Write(*record, effect, [&](store::Transaction& transaction) {
      return transaction.InsertAttempt({.task_id = task_id,
                                        .attempt = attempt,
                                        .store_epoch = store_->epoch(),
                                        .island_id = island,
                                        .incarnation = 1,
                                        .secret_sha256 = std::string(32, 's'),
                                        .start_time = kNow});
    });
    acknowledged.granted[task_id] = attempt;
  }

  spec::Artifact Commit(jobs::JobRecord* record, const jobs::Task& task, int64_t step) {
    const std::string folder =
        storage::CheckpointFolder(blobs_->UriOf(fmt::format("jobs/{}/1-{}", task.task_id, task.attempt)), step, "x");
    const float weight = static_cast<float>(step) + static_cast<float>(task.index);
    const std::string_view bytes(reinterpret_cast<const char*>(&weight), sizeof(weight));
    const std::string file = storage::SerializeSafetensors({{"weights/a", "F32", {1}, bytes}}, {}).value();
    const storage::WrittenFile written = blobs_->Write(folder + "stage-0.safetensors", file).value();
    const int64_t cursor = spec::BatchStart(0, step - 1, kBatch, jobs::SkippedBy(task)) + kBatch;
    storage::CheckpointManifest manifest{.task_id = task.task_id,
                                         .attempt = task.attempt,
                                         .step = step,
                                         .samples_consumed = cursor,
                                         .files = {{"stage-0.safetensors", written.bytes, written.sha256}}};
    const storage::WrittenFile last = blobs_->Write(folder + "manifest.json", storage::ToJson(manifest)).value();
    const store::CheckpointRow row{
        task.task_id, task.attempt, {step, last.uri, last.sha256}, store::CheckpointState::kCommitted, kNow};
    Write(*record, jobs::CommitStep(*record, task.task_id, step),
          [&](store::Transaction& transaction) { return transaction.InsertCheckpoint(row); });
    acknowledged.commits.insert({task.task_id, task.attempt, step});
    return {"checkpoint", last.uri, last.bytes, last.sha256};
  }

  // Back to the checkpoint before step `below`; what was read up to step `through` is skipped.
  void RollBack(jobs::JobRecord* record, const jobs::Task& task, int64_t below, int64_t through,
                const spec::Artifact& superseded) {
    const auto effect = jobs::RollBack(*record, task.task_id,
                                       {.before_step = below, .through_step = through, .reason = "LOSS_EXPLODED"},
                                       {kSteps / 4, kSteps / 2}, kNow);
    Write(*record, effect, [&](store::Transaction& transaction) -> absl::Status {
      ATOLL_RETURN_IF_ERROR(transaction.MarkCheckpoint(superseded.uri, store::CheckpointState::kSuperseded));
      return transaction.InsertRollback(task.task_id, task.rollbacks.back());
    });
  }

  spec::Artifact WriteOutput(const std::string& name, const std::string& path) {
    const storage::WrittenFile file = blobs_->Write(blobs_->UriOf(path), "bytes of " + path).value();
    return {name, file.uri, file.bytes, file.sha256};
  }

  spec::Artifact WriteVersion(const std::string& job_id) {
    const std::string folder = storage::ModelFolderUri(*blobs_.get(), "digits", job_id) + "/";
    const storage::WrittenFile config = blobs_->Write(folder + "expert_0/config.json", "{}").value();
    const storage::ModelIndex index{.name = "digits",
                                    .version = job_id,
                                    .dataset = "digits",
                                    .channels = 1,
                                    .height = 8,
                                    .width = 8,
                                    .classes = {"0"},
                                    .cluster_rows = {1, 1},
                                    .experts = 2,
                                    .files = {{"expert_0/config.json", config.bytes, config.sha256}}};
    const storage::WrittenFile written = blobs_->Write(folder + "model_index.json", storage::ToJson(index)).value();
    return {"model_index", written.uri, written.bytes, written.sha256};
  }

  void Complete(jobs::JobRecord* record, const jobs::Task& task, const spec::Artifact& output) {
    const std::string task_id = task.task_id;
    const bool publishes = task.kind == spec::TaskKind::kPublish;
    Write(*record, jobs::Succeed(*record, task_id, {output}, kNow),
          [&](store::Transaction& transaction) -> absl::Status {
            if (!publishes) return absl::OkStatus();
            const std::string& job_id = record->job.job_id;
            const std::string folder = storage::ModelFolderUri(*blobs_.get(), "digits", job_id);
            ATOLL_RETURN_IF_ERROR(
                transaction.InsertModelVersion({"digits", job_id, job_id, folder, output.sha256, 2, kNow}));
            return transaction.PutServing({"digits", job_id, 1, kNow, "published"});
          });
    acknowledged.completed[task_id] = output.sha256;
  }

  void RunJob(const std::string& job_id) {
    jobs::JobRecord record = Insert(job_id);
    for (const jobs::Task& task : record.tasks) {
      Grant(&record, task, "a");
      if (task.kind == spec::TaskKind::kTrainExpert && task.index == 0) {
        Commit(&record, task, kSteps / 4);
        Write(record, jobs::EndAttempt(record, task.task_id, {jobs::AttemptOutcome::kExpired, false, "late"}, kNow),
              nullptr);
        Grant(&record, task, "b");
      }
      if (task.kind == spec::TaskKind::kTrainExpert && task.index == 1) {
        Commit(&record, task, kSteps / 4);
        const spec::Artifact bad = Commit(&record, task, kSteps / 2);
        RollBack(&record, task, kSteps / 2, kSteps / 2 + 10, bad);
        Grant(&record, task, "b");
      }
      if (jobs::IsTraining(task.kind)) {
        Commit(&record, task, kSteps / 2);
        Complete(&record, task, Commit(&record, task, kSteps));
      } else if (task.kind == spec::TaskKind::kPublish) {
        Complete(&record, task, WriteVersion(job_id));
      } else {
        const std::string name = task.kind == spec::TaskKind::kFeaturize     ? "features"
                                 : task.kind == spec::TaskKind::kCluster     ? "centroids"
                                 : task.kind == spec::TaskKind::kFitFeatures ? "pca"
                                                                             : "partition/0";
        Complete(&record, task, WriteOutput(name, fmt::format("jobs/{}/1-1/{}", task.task_id, name)));
      }
    }
  }

  // Its first task is leased; the others wait.
  void StartJob(const std::string& job_id) {
    jobs::JobRecord record = Insert(job_id);
    Grant(&record, record.tasks[0], "a");
  }

  storage::TemporaryFolder folder_;
  storage::TemporaryStore blobs_;
  std::unique_ptr<store::SqliteStore> store_;
};

// One for all tests: each breaks a copy of the store, or a file that it mends again.
StoryBuilder& Whole() {
  static StoryBuilder* const story = new StoryBuilder;
  return *story;
}

std::vector<Violation> Check(const std::string& store_path) {
  return CheckInvariants({.store = store_path,
                          .blobs = Whole().blobs()->root(),
                          .acknowledged = &Whole().acknowledged,
                          .references = {Whole().CheckpointPath("train_expert-0", 2, kSteps, "manifest.json")}});
}

TEST(InvariantsTest, AWholeStoreViolatesNothing) {
  EXPECT_EQ(ToString(Check(Whole().store_path())), "");
}

struct Damage {
  std::string name;
  // The rule that must say so, and something of what it says.
  std::string rule;
  std::string what;
  std::string sql;
  // A file of the blob store of which a bit is flipped.
  std::string file;
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.name;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class BrokenStoreTest : public testing::TestWithParam<Damage> {};

TEST_P(BrokenStoreTest, IsFound) {
  const Damage& damage = GetParam();
  const storage::TemporaryFolder folder;
  const std::string store_path = folder.File("store.db");
  std::filesystem::copy_file(Whole().store_path(), store_path);
  if (!damage.sql.empty()) {
    const auto database = store::SqliteDatabase::Open(store_path, absl::Seconds(1), store::OpenMode::kExisting);
    ASSERT_TRUE(database.ok()) << database.status();
    const absl::Status broken = (*database)->Execute("PRAGMA foreign_keys = OFF; " + damage.sql);
    ASSERT_TRUE(broken.ok()) << broken;
    ASSERT_GT((*database)->changes(), 0) << "the damage changed nothing";
  }
  std::string bytes;
  const std::string path = Whole().PathOf(damage.file);
  if (!damage.file.empty()) {
    bytes = ReadFile(path);
    ASSERT_FALSE(bytes.empty()) << path;
    bytes.back() ^= 1;
    std::ofstream(path) << bytes;
  }
  const std::vector<Violation> found = Check(store_path);
  if (!damage.file.empty()) {
    bytes.back() ^= 1;
    std::ofstream(path) << bytes;
  }
  const bool said = std::any_of(found.begin(), found.end(), [&](const Violation& violation) {
    return violation.rule == damage.rule && violation.what.find(damage.what) != std::string::npos;
  });
  EXPECT_TRUE(said) << "expected " << damage.rule << ": ..." << damage.what << "..., found:\n" << ToString(found);
}

constexpr char kRowCopy[] =
    "INSERT INTO checkpoints SELECT manifest_uri || '2', task_id, attempt, step, manifest_sha256, milestone, state, "
    "commit_time FROM checkpoints ";

INSTANTIATE_TEST_SUITE_P(
    Damages, BrokenStoreTest,
    testing::Values(
        Damage{"TasksWithoutJob", "store", "belongs to nothing", "DELETE FROM jobs WHERE job_id = 'done'"},
        Damage{"NoDatabase", "store", "", "DELETE FROM schema_version; DROP TABLE schema_version"},
        Damage{"AnotherStoresEpoch", "epoch", "but the newest is 1",
               "UPDATE meta SET value = 'another' WHERE key = 'store_id'"},
        Damage{"EpochNeverTaken", "epoch", "has epoch 7", "UPDATE meta SET value = '7' WHERE key = 'store_epoch'"},
        Damage{"SucceededTooEarly", "jobs", "with 7 of 8 tasks",
               "UPDATE tasks SET state = 6 WHERE task_id = 'done/cluster'"},
        Damage{"FailedWithoutTask", "jobs", "none of its tasks", "UPDATE jobs SET state = 4 WHERE job_id = 'done'"},
        Damage{"PendingWithAttempt", "jobs", "PENDING", "UPDATE jobs SET state = 1 WHERE job_id = 'open'"},
        Damage{"EndedWithOpenTask", "jobs", "is CANCELLED, but", "UPDATE jobs SET state = 5 WHERE job_id = 'open'"},
        Damage{"FailedTaskOfOpenJob", "jobs", "is RUNNING, but",
               "UPDATE tasks SET state = 5 WHERE task_id = 'open/cluster'"},
        Damage{"EndTime", "jobs", "end time", "UPDATE jobs SET end_time = NULL WHERE job_id = 'done'"},
        Damage{"GrantedTooEarly", "jobs", "before what it waits for",
               "UPDATE tasks SET attempt = 1 WHERE task_id = 'open/publish'"},
        Damage{"BlockedForEver", "jobs", "is BLOCKED, but",
               "UPDATE tasks SET state = 1 WHERE task_id = 'done/publish'"},
        Damage{"ReadyTooEarly", "jobs", "READY too early", "UPDATE tasks SET state = 2 WHERE task_id = 'open/cluster'"},
        Damage{"AttemptSkipped", "attempts", "expected attempt 1 after 0",
               "DELETE FROM attempts WHERE task_id = 'done/train_expert-0' AND attempt = 1"},
        Damage{"AttemptForgotten", "attempts", "is at attempt 2, but its newest row is 1",
               "DELETE FROM attempts WHERE task_id = 'done/train_expert-0' AND attempt = 2"},
        Damage{"AttemptFellBack", "attempts", "is at attempt 1, but its newest row is 2",
               "UPDATE tasks SET attempt = 1 WHERE task_id = 'done/train_expert-0'"},
        Damage{"EpochFellBack", "attempts", "has epoch 0",
               "UPDATE attempts SET store_epoch = 0 WHERE task_id = 'done/cluster'"},
        Damage{"EpochFromTheFuture", "attempts", "has epoch 2",
               "UPDATE attempts SET store_epoch = 2 WHERE task_id = 'done/cluster'"},
        Damage{"TwoActive", "attempts", "with 2 active attempts",
               "DROP INDEX one_active_attempt_per_task; DROP INDEX one_active_attempt_per_island; UPDATE attempts SET "
               "outcome = 1 WHERE task_id = 'done/train_expert-0'"},
        Damage{"LeasedToNobody", "attempts", "has ended EXPIRED",
               "UPDATE attempts SET outcome = 5 WHERE task_id LIKE 'open/%'"},
        Damage{"FinishedTwice", "attempts", "2 attempts finished it",
               "UPDATE attempts SET outcome = 2 WHERE task_id = 'done/train_expert-0'"},
        Damage{"AnotherIsland", "attempts", "names island c",
               "UPDATE tasks SET island_id = 'c' WHERE task_id = 'done/cluster'"},
        Damage{"TwoTasksOfOneIsland", "attempts", "at once",
               "DROP INDEX one_active_attempt_per_island; UPDATE attempts SET outcome = 1 WHERE task_id = "
               "'done/cluster'"},
        Damage{"StepTwice", "steps", "step 25 was committed twice",
               std::string(kRowCopy) + "WHERE task_id = 'done/train_expert-0' AND step = 25"},
        Damage{"StaleCommit", "steps", "attempt 1 committed step 50 after",
               "UPDATE checkpoints SET attempt = 3 - attempt WHERE task_id = 'done/train_expert-0' AND step < 100"},
        Damage{"CommitOfNobody", "steps", "which was never granted",
               "UPDATE checkpoints SET attempt = 9 WHERE task_id = 'done/train_router' AND step = 50"},
        Damage{"CommitLost", "steps", "the task says step 100, its newest committed row 50",
               "DELETE FROM checkpoints WHERE task_id = 'done/train_router' AND step = 100"},
        Damage{"NewestBeingDeleted", "steps", "its newest committed row 50",
               "UPDATE checkpoints SET state = 2 WHERE task_id = 'done/train_router' AND step = 100"},
        Damage{"CommitNotCounted", "steps", "has committed: false",
               "UPDATE tasks SET attempt_committed = 0 WHERE task_id = 'done/train_router'"},
        Damage{"SupersededByNothing", "steps", "is superseded, but the task never went back",
               "UPDATE checkpoints SET state = 3 WHERE task_id = 'done/train_router' AND step = 50"},
        Damage{"BackAndForth", "steps", "step 50 was committed twice",
               "UPDATE checkpoints SET state = 1 WHERE task_id = 'done/train_expert-1' AND state = 3"},
        Damage{"RollbackUndone", "steps", "step 50 of attempt 1 is committed, but attempt 1 went back to step 25",
               "UPDATE checkpoints SET state = 1 WHERE task_id = 'done/train_expert-1' AND state = 3"},
        Damage{"RollbackLost", "cursor", "done/train_expert-1 step 100", "DELETE FROM rollbacks"},
        Damage{"NoOutputs", "results", "expected an artifact named",
               "DELETE FROM artifacts WHERE task_id = 'done/cluster'"},
        Damage{"DoneTooEarly", "results", "is done at step 50 of 100",
               "UPDATE tasks SET committed_step = 50 WHERE task_id = 'done/train_router'"},
        Damage{"AnotherResult", "results", "no committed row of step 100",
               "UPDATE artifacts SET uri = uri || 'x' WHERE task_id = 'done/train_router'"},
        Damage{"AnotherVersion", "versions", "is not what its job published",
               "UPDATE model_versions SET digest = 'other'"},
        Damage{"VersionLost", "versions", "has 0 versions of done", "DELETE FROM model_versions"},
        Damage{"ModelLost", "versions", "done has SUCCEEDED, but there is no model digits", "DELETE FROM serving"},
        Damage{"ServesNothing", "versions", "which is no version", "UPDATE serving SET version = 'gone'"},
        Damage{"GenerationGap", "versions", "expected generation 1", "UPDATE serving_history SET generation = 2"},
        Damage{"GenerationFellBack", "versions", "its history ends with 1", "UPDATE serving SET generation = 0"},
        Damage{"CheckpointFlipped", "files", "stage-0.safetensors", "",
               "jobs/done/train_router/1-1/00000050-x/stage-0.safetensors"},
        Damage{"ManifestFlipped", "files", "manifest.json", "", "jobs/done/train_router/1-1/00000050-x/manifest.json"},
        Damage{"OutputFlipped", "files", "done/cluster", "", "jobs/done/cluster/1-1/centroids"},
        Damage{"OutputBytes", "files", "expected 9", "UPDATE artifacts SET bytes = 9 WHERE task_id = 'done/cluster'"},
        Damage{"VersionFlipped", "files", "config.json", "", "models/digits/done/expert_0/config.json"},
        Damage{"IndexFlipped", "files", "model_index.json", "", "models/digits/done/model_index.json"},
        Damage{"AnotherTasksCheckpoint", "files", "its manifest is of done/train_router attempt 1 step 50",
               "UPDATE checkpoints SET step = 51 WHERE task_id = 'done/train_router' AND step = 50"},
        Damage{"SamplesTwice", "cursor", "200 samples are consumed, expected 204",
               "UPDATE checkpoints SET step = 51 WHERE task_id = 'done/train_router' AND step = 50"},
        Damage{"CommitNeverThere", "acknowledged", "done/train_router step 100",
               "UPDATE tasks SET committed_step = 50 WHERE task_id = 'done/train_router'; DELETE FROM checkpoints "
               "WHERE task_id = 'done/train_router' AND step = 100"},
        Damage{"CommitAfterARollbackLost", "acknowledged", "done/train_expert-1 step 100 was committed by attempt 2",
               "UPDATE tasks SET committed_step = 50 WHERE task_id = 'done/train_expert-1'; DELETE FROM checkpoints "
               "WHERE task_id = 'done/train_expert-1' AND step = 100"},
        Damage{"GrantLost", "acknowledged", "but the store is at 1",
               "UPDATE tasks SET attempt = 1 WHERE task_id = 'done/train_expert-0'"},
        Damage{"CompletionLost", "acknowledged", "done/cluster was completed",
               "UPDATE tasks SET state = 3 WHERE task_id = 'done/cluster'"},
        Damage{"AnotherCompletion", "acknowledged", "which is not what it has",
               "UPDATE artifacts SET sha256 = replace(sha256, 'a', 'b') WHERE task_id = 'done/cluster'"},
        Damage{"JobLost", "acknowledged", "job open was submitted",
               "DELETE FROM tasks WHERE job_id = 'open'; DELETE FROM attempts WHERE task_id LIKE 'open/%'; DELETE FROM "
               "jobs WHERE job_id = 'open'"},
        Damage{"NothingToCompare", "weights", "no job that has succeeded has a task train_expert-0",
               "UPDATE jobs SET state = 2 WHERE job_id = 'done'"}),
    [](const testing::TestParamInfo<Damage>& damage) { return damage.param.name; });

TEST(InvariantsTest, OtherWeightsThanTheReferenceAreFound) {
  const auto compare = [](const std::string& reference) {
    return ToString(
        CheckInvariants({.store = Whole().store_path(), .blobs = Whole().blobs()->root(), .references = {reference}}));
  };
  // An earlier step's weights in place of the last's, as a run that lost its way would have.
  EXPECT_EQ(compare(Whole().CheckpointPath("train_expert-0", 2, kSteps / 2, "manifest.json")),
            "weights: done/train_expert-0: weights/a differs\n");
  EXPECT_THAT(compare(Whole().PathOf("no/manifest.json")), HasSubstr("weights: reference"));
}

TEST(InvariantsTest, AStepIsAcknowledgedTwiceOnlyAroundARollback) {
  const auto story = ReadStoryOf(Whole().store_path());
  ASSERT_TRUE(story.ok()) << story.status();
  // Attempt 1 of this task went back from step 50 to 25.
  Acknowledged told;
  told.commits = {{"done/train_expert-1", 1, 50}, {"done/train_expert-1", 2, 50}};
  EXPECT_EQ(ToString(CheckAcknowledged(*story, told)), "");
  told.commits.insert({"done/train_expert-1", 3, 50});
  EXPECT_THAT(ToString(CheckAcknowledged(*story, told)), HasSubstr("step 50 was committed twice, by attempts 2 and 3"));
  told.commits = {{"done/train_expert-1", 1, 25}, {"done/train_expert-1", 2, 25}};
  EXPECT_THAT(ToString(CheckAcknowledged(*story, told)), HasSubstr("step 25 was committed twice, by attempts 1 and 2"));
}

TEST(InvariantsTest, WhatIsNoStoreIsSaid) {
  const storage::TemporaryFolder folder;
  EXPECT_THAT(ToString(CheckInvariants({.store = folder.File("none.db")})), HasSubstr("store: "));
  std::ofstream(folder.File("text.db")) << std::string(8192, 'x');
  EXPECT_THAT(ToString(CheckInvariants({.store = folder.File("text.db")})), HasSubstr("STORE_CORRUPT"));
}

TEST(InvariantsTest, LeadersLogsSayWhatWasAcknowledged) {
  Acknowledged acknowledged;
  AddFromLog(
      "[12:00:01.000] [info] task j/train_expert-0 (train_expert 0) attempt 2: claimed\n"
      "[12:00:02.000] [info] task j/train_expert-0 attempt 2: checkpoint of step 10 is committed\n"
      "[12:00:02.500] [warning] task j/train_expert-0: checkpoint of step 15 not committed: x\n"
      "[12:00:03.000] [info] task j/train_expert-0 (train_expert 0) attempt 1: claimed\n",
      &acknowledged);
  EXPECT_EQ(acknowledged.granted, (std::map<std::string, int64_t>{{"j/train_expert-0", 2}}));
  EXPECT_EQ(acknowledged.commits, (std::set<Acknowledged::Commit>{{"j/train_expert-0", 2, 10}}));
}

}  // namespace
}  // namespace atl::testing_invariants
