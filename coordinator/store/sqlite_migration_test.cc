// Stores that earlier builds wrote, as SQL text in testdata/: each becomes one of today, and says what it said before.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/base/errors.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/sqlite_backup.h"
#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/test_support.h"
#include "gmock/gmock.h"

namespace atl::store {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SqliteMigrationTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const char* source = std::getenv("ATOLL_SOURCE_DIR");
    if (source == nullptr) GTEST_SKIP() << "ATOLL_SOURCE_DIR is not set: run through ctest";
    const std::string path =
        std::string(source) + "/coordinator/store/testdata/schema-" + std::to_string(GetParam()) + ".sql";
    std::ifstream file(path);
    ASSERT_TRUE(file) << path << ": every schema before today's has a store there";
    std::stringstream text;
    text << file.rdbuf();
    auto database = SqliteDatabase::Open(folder_.File("s.db"), absl::ZeroDuration());
    ASSERT_TRUE(database.ok()) << database.status();
    ASSERT_TRUE((*database)->Execute("PRAGMA journal_mode = WAL").ok());
    const absl::Status written = (*database)->Execute(text.str());
    ASSERT_TRUE(written.ok()) << written;
  }

  // Everything that the fixtures hold, whatever their schema.
  void ExpectContents(SqliteStore& store) {
    const auto job = store.GetJob("j-1");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->job.spec, SmallJob("j-1").job.spec);
    EXPECT_EQ(job->job.state, jobs::JobState::kRunning);
    EXPECT_EQ(job->job.message, "it's going");
    EXPECT_EQ(job->job.revision, 7);
    ASSERT_EQ(job->tasks.size(), SmallJob("j-1").tasks.size());
    const jobs::Task& first = job->tasks[0];
    EXPECT_EQ(first.state, jobs::TaskState::kSucceeded);
    ASSERT_EQ(first.outputs.size(), 1U);
    EXPECT_EQ(first.outputs[0].uri, "file:///b/pca");
    const jobs::Task& training = *jobs::FindTask(*job, "j-1/train_expert-0");
    EXPECT_EQ(training.state, jobs::TaskState::kLeased);
    EXPECT_EQ(training.committed_step, 20);
    EXPECT_TRUE(training.attempt_committed);

    const auto checkpoints = store.Checkpoints("j-1/train_expert-0");
    ASSERT_TRUE(checkpoints.ok()) << checkpoints.status();
    ASSERT_EQ(checkpoints->size(), 2U);
    EXPECT_EQ(checkpoints->at(0).state, CheckpointState::kDeleting);
    EXPECT_EQ(checkpoints->at(1).checkpoint.step, 20);
    EXPECT_EQ(checkpoints->at(1).checkpoint.manifest_sha256, std::string(64, 'b'));

    const auto active = store.ActiveAttempts();
    ASSERT_TRUE(active.ok()) << active.status();
    ASSERT_EQ(active->size(), 1U);
    EXPECT_EQ(active->at(0), ActiveAttempt("j-1/cluster", 2, "b", 1));
    EXPECT_EQ(store.Islands()->at(0).incarnation, 2);
    EXPECT_EQ(store.GetModel("m")->serving.version, "v3");
    EXPECT_EQ(store.GetModel("m")->versions.size(), 3U);
    EXPECT_EQ(store.ServingHistory("m")->size(), 3U);
    EXPECT_EQ(store.DeletedJobs()->at(0).job_id, "j-0");
    std::optional<Answer> answer;
    int64_t revision = 0;
    ASSERT_TRUE(store
                    .Write("read",
                           [&](Transaction& t) -> absl::Status {
                             answer = t.FindAnswer("anonymous", "SubmitJob", "r-1").value();
                             revision = t.NextRevision().value();
                             return t.CheckFence(TokenOf(ActiveAttempt("j-1/cluster", 2, "b", 1)));
                           })
                    .ok());
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->response, "\x0a\x03j-1");
    EXPECT_EQ(revision, 8);
  }

  std::vector<std::string> FilesWithTheSecret() const { return FilesWith(folder_.File(""), kSecret); }

  TemporaryFolder folder_;
};

TEST_P(SqliteMigrationTest, BecomesOneOfTodayAndSaysWhatItSaid) {
  {
    const auto store = OpenOrDie(folder_.File("s.db"));
    ExpectContents(*store);
    EXPECT_EQ(store->epoch(), 1);
    EXPECT_EQ(store->store_id(), "0123456789abcdef0123456789abcdef");
    EXPECT_FALSE(store->collection_held());
    EXPECT_FALSE(store->restored());
    EXPECT_EQ(store->restored_epoch(), 0);
    const auto progress = store->FinalProgress("j-1");
    ASSERT_TRUE(progress.ok()) << progress.status();
    if (GetParam() >= 2) {
      EXPECT_EQ(progress->at("j-1/fit_features").metrics.at("accuracy"), 0.25);
    }
  }
  auto database = SqliteDatabase::Open(folder_.File("s.db"), absl::ZeroDuration(), OpenMode::kExisting);
  ASSERT_TRUE(database.ok());
  Statement check = (*database)->Prepare("PRAGMA integrity_check");
  ASSERT_TRUE(check.Step().ok());
  EXPECT_EQ(check.Text(), "ok");
  Statement orphans = (*database)->Prepare("PRAGMA foreign_key_check");
  EXPECT_FALSE(orphans.Step().value());
  // A new store and a migrated one have the same tables, columns and indexes.
  const auto schema_of = [](Database& any) {
    std::string text;
    Statement row = any.Prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name");
    while (row.Step().value()) text += row.Text() + "\n";
    return text;
  };
  { OpenOrDie(folder_.File("new.db")); }
  auto fresh = SqliteDatabase::Open(folder_.File("new.db"), absl::ZeroDuration(), OpenMode::kExisting);
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(schema_of(**database), schema_of(**fresh));
}

TEST_P(SqliteMigrationTest, NoSecretOfAnAttemptIsLeftInAnyFile) {
  // Rows that are gone leave their bytes in free pages, where the build of then was told to leave them.
  {
    auto database = SqliteDatabase::Open(folder_.File("s.db"), absl::ZeroDuration(), OpenMode::kExisting);
    ASSERT_TRUE(database.ok());
    const absl::Status grown = (*database)->Execute(
        "PRAGMA secure_delete = OFF; CREATE TABLE gone (secret BLOB, filling BLOB); WITH RECURSIVE n (i) AS (SELECT 1 "
        "UNION ALL SELECT i + 1 FROM n WHERE i < 100) INSERT INTO gone SELECT secret, zeroblob(900) FROM attempts, n; "
        "DROP TABLE gone");
    ASSERT_TRUE(grown.ok()) << grown;
  }
  ASSERT_THAT(FilesWithTheSecret(), Not(IsEmpty())) << "the search finds what is there";
  {
    const auto store = OpenOrDie(folder_.File("s.db"));
    EXPECT_THAT(FilesWithTheSecret(), IsEmpty());
    // An island that runs since before goes on, and what it writes does not bring the secret back.
    const spec::LeaseToken token = TokenOf(ActiveAttempt("j-1/cluster", 2, "b", 1));
    EXPECT_TRUE(store->Write("check", [&](Transaction& t) { return t.CheckFence(token); }).ok());
    ASSERT_TRUE(BackUpStore(folder_.File("s.db"), folder_.File("backup.db")).ok());
    EXPECT_THAT(FilesWithTheSecret(), IsEmpty());
  }
  EXPECT_THAT(FilesWithTheSecret(), IsEmpty());
}

TEST_P(SqliteMigrationTest, WhoReadsMeanwhileKeepsRemainsUntilTheNextStart) {
  auto reader = SqliteDatabase::Open(folder_.File("s.db"), absl::ZeroDuration(), OpenMode::kExisting);
  ASSERT_TRUE(reader.ok());
  {
    // Of before the migration.
    Statement reading = (*reader)->Prepare("SELECT task_id FROM tasks");
    ASSERT_TRUE(reading.Step().value());
    const auto store = OpenOrDie(folder_.File("s.db"));
    EXPECT_EQ(store->ActiveAttempts()->size(), 1U) << "the store serves all the same";
    EXPECT_THAT(FilesWithTheSecret(), Not(IsEmpty()));
  }
  reader->reset();
  { OpenOrDie(folder_.File("s.db")); }
  EXPECT_THAT(FilesWithTheSecret(), IsEmpty());
}

TEST_P(SqliteMigrationTest, ABackupOfAnOldStoreIsRestoredAndMigrated) {
  const auto backup = BackUpStore(folder_.File("s.db"), folder_.File("backup.db"));
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_EQ(backup->jobs, 1);
  EXPECT_EQ(backup->revision, 7);
  ASSERT_TRUE(RestoreStore(folder_.File("backup.db"), folder_.File("restored.db")).ok());
  const auto store = OpenOrDie(folder_.File("restored.db"));
  EXPECT_TRUE(store->restored());
  ExpectContents(*store);
}

TEST_P(SqliteMigrationTest, AStoreThatTookSeveralEpochsMayHaveBeenRestored) {
  {
    auto database = SqliteDatabase::Open(folder_.File("s.db"), absl::ZeroDuration(), OpenMode::kExisting);
    ASSERT_TRUE(database.ok());
    ASSERT_TRUE((*database)->Execute("UPDATE meta SET value = '4' WHERE key = 'store_epoch'").ok());
  }
  // From schema 3 on a store says so itself.
  EXPECT_EQ(OpenOrDie(folder_.File("s.db"))->restored_epoch(), GetParam() < 3 ? 4 : 0);
}

TEST(SqliteFullMigrationTest, AMigrationThatDoesNotFitLeavesTheStoreAsItWas) {
  TemporaryFolder folder;
  { OpenOrDie(folder.File("s.db")); }
  auto database = SqliteDatabase::Open(folder.File("s.db"), absl::ZeroDuration(), OpenMode::kExisting);
  ASSERT_TRUE(database.ok());
  ASSERT_TRUE((*database)
                  ->Execute("PRAGMA journal_mode = DELETE; DROP TABLE final_progress; VACUUM; "
                            "DELETE FROM schema_version WHERE version > 1")
                  .ok());
  Statement pages = (*database)->Prepare("PRAGMA page_count");
  ASSERT_TRUE(pages.Step().value());
  const int64_t count = pages.Int();
  ASSERT_TRUE((*database)->Execute("PRAGMA max_page_count = " + std::to_string(count)).ok());
  const absl::Status status = Migrate(**database);
  EXPECT_EQ(ErrorReason(status), "STORE_FULL") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("migrating to schema version 2"));
  Statement version = (*database)->Prepare("SELECT max(version) FROM schema_version");
  ASSERT_TRUE(version.Step().value());
  EXPECT_EQ(version.Int(), 1);
}

INSTANTIATE_TEST_SUITE_P(EverySchemaBeforeTodays, SqliteMigrationTest, testing::Range(1, SchemaVersion()),
                         [](const auto& info) { return "Schema" + std::to_string(info.param); });

}  // namespace
}  // namespace atl::store
