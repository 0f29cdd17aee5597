#include "coordinator/store/sqlite_backup.h"

#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/test_support.h"
#include "gmock/gmock.h"

namespace atl::store {
namespace {

using ::testing::HasSubstr;

class SqliteBackupTest : public testing::Test {
 protected:
  SqliteBackupTest() : store_(OpenOrDie(folder_.File("s.db"))) { EXPECT_TRUE(store_->AdoptEpoch(1).ok()); }

  // Two jobs in one transaction.
  absl::Status InsertPair(SqliteStore& store, int pair) {
    return store.Write("insert", [&](Transaction& t) -> absl::Status {
      ATOLL_RETURN_IF_ERROR(t.NextRevision().status());
      ATOLL_RETURN_IF_ERROR(t.InsertJob(SmallJob("j-" + std::to_string(2 * pair))));
      return t.InsertJob(SmallJob("j-" + std::to_string(2 * pair + 1)));
    });
  }

  absl::StatusOr<BackupFacts> BackUp() { return BackUpStore(folder_.File("s.db"), folder_.File("backup.db")); }
  absl::StatusOr<BackupFacts> Restore() { return RestoreStore(folder_.File("backup.db"), folder_.File("new.db")); }

  TemporaryFolder folder_;
  std::unique_ptr<SqliteStore> store_;
};

TEST_F(SqliteBackupTest, OfARunningStoreHoldsEveryTransactionWholeOrNotAtAll) {
  std::atomic<int> written = 0;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int pair = 0; !stop && pair < 2000; ++pair) {
      ASSERT_TRUE(InsertPair(*store_, pair).ok());
      written = pair + 1;
    }
  });
  while (written < 3) std::this_thread::yield();
  for (int round = 0; round < 3; ++round) {
    const int before = written;
    const auto backup = BackUp();
    const int after = written;
    ASSERT_TRUE(backup.ok()) << backup.status();
    EXPECT_EQ(backup->jobs % 2, 0) << "half a transaction";
    EXPECT_EQ(backup->jobs, 2 * backup->revision);
    EXPECT_GE(backup->revision, before) << "what was acknowledged before is in it";
    EXPECT_LE(backup->revision, after + 1);
    // The backup may be replaced by the next one; this one is whole.
    ASSERT_TRUE(RestoreStore(folder_.File("backup.db"), folder_.File("new" + std::to_string(round))).ok());
    const auto restored = OpenOrDie(folder_.File("new" + std::to_string(round)));
    const auto jobs = restored->UnfinishedJobs();
    ASSERT_TRUE(jobs.ok()) << jobs.status();
    EXPECT_EQ(static_cast<int64_t>(jobs->size()), backup->jobs);
  }
  stop = true;
  writer.join();
}

TEST_F(SqliteBackupTest, ARestoredStoreIsAnotherStoreThatTakesAHigherEpochAndHoldsCollection) {
  ASSERT_TRUE(InsertPair(*store_, 0).ok());
  const auto backup = BackUp();
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_EQ(backup->store_id, store_->store_id());
  EXPECT_EQ(backup->epoch, 1);
  EXPECT_FALSE(store_->restored()) << "the copy is marked, not the store";
  const auto facts = Restore();
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->jobs, 2);
  std::string id;
  {
    const auto restored = OpenOrDie(folder_.File("new.db"));
    EXPECT_TRUE(restored->restored());
    EXPECT_NE(restored->store_id(), store_->store_id());
    ASSERT_TRUE(restored->AdoptEpoch(5).ok());
    id = restored->store_id();
  }
  {
    const auto again = OpenOrDie(folder_.File("new.db"));
    EXPECT_FALSE(again->restored());
    EXPECT_TRUE(again->collection_held());
    EXPECT_EQ(again->restored_epoch(), 5);
    EXPECT_EQ(again->epoch(), 5);
    EXPECT_EQ(again->store_id(), id);
    ASSERT_TRUE(again->AdoptEpoch(6).ok());
    EXPECT_TRUE(again->collection_held()) << "until it is released";
    EXPECT_EQ(again->restored_epoch(), 5);
    ASSERT_TRUE(again->ReleaseCollection().ok());
  }
  const auto released = OpenOrDie(folder_.File("new.db"));
  EXPECT_FALSE(released->collection_held());
  EXPECT_EQ(released->restored_epoch(), 5);
}

TEST_F(SqliteBackupTest, IsOneFileThatOnlyItsOwnerMayReadWithNothingBesideIt) {
  ASSERT_TRUE(BackUp().ok());
  struct stat facts = {};
  ASSERT_EQ(stat(folder_.File("backup.db").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.File(""))) {
    files += entry.path().filename().string().rfind("backup.db", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(files, 1);
}

TEST_F(SqliteBackupTest, AFailedBackupLeavesTheEarlierOne) {
  ASSERT_TRUE(InsertPair(*store_, 0).ok());
  ASSERT_TRUE(BackUp().ok());
  store_.reset();
  {
    std::fstream file(folder_.File("s.db"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << std::string(20'000, '\x5a');
  }
  EXPECT_EQ(ErrorReason(BackUp().status()), "STORE_CORRUPT");
  const auto facts = Restore();
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->jobs, 2);
}

TEST_F(SqliteBackupTest, WhatIsNoStoreCannotBeBackedUp) {
  const absl::Status missing = BackUpStore(folder_.File("nothing.db"), folder_.File("backup.db")).status();
  EXPECT_EQ(ErrorReason(missing), "STORE_CANNOT_OPEN");
  EXPECT_FALSE(std::filesystem::exists(folder_.File("nothing.db"))) << "none is made";
  EXPECT_EQ(ErrorReason(BackUpStore(folder_.File("s.db"), folder_.File("s.db")).status()), "STORE_EXISTS");
  std::ofstream(folder_.File("text.db")) << std::string(8192, 'x');
  EXPECT_EQ(ErrorReason(BackUpStore(folder_.File("text.db"), folder_.File("backup.db")).status()), "STORE_CORRUPT");
  EXPECT_FALSE(std::filesystem::exists(folder_.File("backup.db")));
}

TEST_F(SqliteBackupTest, APathThatCannotBeFollowedIsAnError) {
  ASSERT_TRUE(BackUp().ok());
  const std::string loop = folder_.File("loop.db");
  std::filesystem::create_symlink(loop, loop);
  for (const absl::Status& status :
       {BackUpStore(loop, folder_.File("other.db")).status(), RestoreStore(loop, folder_.File("new.db")).status()}) {
    EXPECT_EQ(ErrorReason(status), "STORE_CANNOT_OPEN") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("loop.db: ")) << status;
  }
  EXPECT_EQ(ErrorReason(RestoreStore(folder_.File("backup.db"), loop).status()), "STORE_EXISTS");
}

TEST_F(SqliteBackupTest, RestoringNeverReplacesAStore) {
  ASSERT_TRUE(InsertPair(*store_, 0).ok());
  ASSERT_TRUE(BackUp().ok());
  ASSERT_TRUE(InsertPair(*store_, 1).ok());
  EXPECT_EQ(ErrorReason(RestoreStore(folder_.File("backup.db"), folder_.File("s.db")).status()), "STORE_EXISTS");
  EXPECT_EQ(store_->UnfinishedJobs()->size(), 4U);
  std::filesystem::create_symlink(folder_.File("nowhere.db"), folder_.File("link.db"));
  const absl::Status link = RestoreStore(folder_.File("backup.db"), folder_.File("link.db")).status();
  EXPECT_EQ(ErrorReason(link), "STORE_EXISTS") << link;
}

TEST_F(SqliteBackupTest, OnlyAWholeBackupIsRestored) {
  ASSERT_TRUE(InsertPair(*store_, 0).ok());
  ASSERT_TRUE(BackUp().ok());
  store_.reset();
  const absl::Status store = RestoreStore(folder_.File("s.db"), folder_.File("new.db")).status();
  EXPECT_EQ(ErrorReason(store), "NOT_A_BACKUP") << store;
  {
    std::fstream file(folder_.File("backup.db"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    file << std::string(20'000, '\x5a');
  }
  const absl::Status damaged = Restore().status();
  EXPECT_EQ(ErrorReason(damaged), "STORE_CORRUPT") << damaged;
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("backup.db"));
  EXPECT_FALSE(std::filesystem::exists(folder_.File("new.db")));
}

TEST_F(SqliteBackupTest, ABackupOfANewerBuildIsOneClearError) {
  ASSERT_TRUE(BackUp().ok());
  {
    auto backup = SqliteDatabase::Open(folder_.File("backup.db"), absl::ZeroDuration(), OpenMode::kExisting);
    ASSERT_TRUE(backup.ok());
    ASSERT_TRUE((*backup)->Execute("INSERT INTO schema_version VALUES (99, 0)").ok());
  }
  EXPECT_EQ(ErrorReason(Restore().status()), "STORE_TOO_NEW");
  EXPECT_FALSE(std::filesystem::exists(folder_.File("new.db")));
}

}  // namespace
}  // namespace atl::store
