// A disk that is full, turns read-only, or damages a page under a store that is open: one clear error each, and what
// was acknowledged stays as it was.
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>

#include "common/base/errors.h"
#include "coordinator/store/sqlite_backup.h"
#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/test_support.h"

namespace atl::store {
namespace {

// A file system of its own of 1 MiB, where this process may make one.
class SmallDisk {
 public:
  SmallDisk() : path_(folder_.File("disk")) {
    std::filesystem::create_directory(path_);
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  bool TurnReadOnly() { return mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m") == 0; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  TemporaryFolder folder_;
  const std::string path_;
  bool mounted_ = false;
};

class SqliteDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    if (disk_.mounted()) return;
    constexpr char kMissing[] = "mounting a file system: run as root";
    if (std::getenv("CI") != nullptr) FAIL() << kMissing;
    GTEST_SKIP() << kMissing;
  }

  absl::Status Insert(SqliteStore& store, int job) {
    return store.Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob("j-" + std::to_string(job))); });
  }

  // Inserts until the disk is full; returns how many jobs were acknowledged, and the error.
  std::pair<int, absl::Status> Fill(SqliteStore& store) {
    for (int job = 0; job < 10'000; ++job) {
      if (absl::Status status = Insert(store, job); !status.ok()) return {job, status};
    }
    return {10'000, absl::OkStatus()};
  }

  SmallDisk disk_;
};

TEST_F(SqliteDiskTest, AFullDiskRefusesWritesAndKeepsWhatWasAcknowledged) {
  int acknowledged = 0;
  int64_t epoch = 1;
  {
    const auto store = OpenOrDie(disk_.File("s.db"));
    ASSERT_TRUE(store->AdoptEpoch(1).ok());
    std::ofstream(disk_.File("filler")) << std::string(300'000, 'x');
    const auto [jobs, status] = Fill(*store);
    acknowledged = jobs;
    EXPECT_GT(jobs, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ErrorReason(status), "STORE_FULL") << status;
    EXPECT_EQ(static_cast<int>(store->UnfinishedJobs()->size()), jobs) << "reading goes on";
    // A smaller write may still fit; what is said of it is what the file has.
    const absl::Status adopted = store->AdoptEpoch(2);
    EXPECT_TRUE(adopted.ok() || ErrorReason(adopted) == "STORE_FULL") << adopted;
    epoch = adopted.ok() ? 2 : 1;
    EXPECT_EQ(store->epoch(), epoch);
  }
  {
    const auto again = OpenOrDie(disk_.File("s.db"));
    EXPECT_EQ(static_cast<int>(again->UnfinishedJobs()->size()), acknowledged);
    EXPECT_EQ(again->epoch(), epoch);
    std::filesystem::remove(disk_.File("filler"));
    EXPECT_TRUE(Insert(*again, acknowledged).ok()) << "there is room again";
  }
  EXPECT_EQ(static_cast<int>(OpenOrDie(disk_.File("s.db"))->UnfinishedJobs()->size()), acknowledged + 1);
}

TEST_F(SqliteDiskTest, ABackupThatDoesNotFitLeavesNothing) {
  TemporaryFolder folder;
  const auto store = OpenOrDie(folder.File("s.db"));
  for (int job = 0; job < 50; ++job) ASSERT_TRUE(Insert(*store, job).ok());
  std::ofstream(disk_.File("filler")) << std::string(950'000, 'x');
  const absl::Status status = BackUpStore(folder.File("s.db"), disk_.File("backup.db")).status();
  EXPECT_EQ(ErrorReason(status), "STORE_FULL") << status;
  std::filesystem::remove(disk_.File("filler"));
  EXPECT_TRUE(std::filesystem::is_empty(disk_.File("")));
}

TEST_F(SqliteDiskTest, ADiskThatTurnsReadOnlyIsSaidToBe) {
  const auto store = OpenOrDie(disk_.File("s.db"));
  ASSERT_TRUE(Insert(*store, 0).ok());
  // Linux refuses while files are open for writing; a copy that is closed can be turned.
  SmallDisk other;
  ASSERT_TRUE(other.mounted());
  ASSERT_TRUE(BackUpStore(disk_.File("s.db"), other.File("s.db")).ok());
  ASSERT_TRUE(other.TurnReadOnly());
  const absl::Status opened = SqliteStore::Open({.path = other.File("s.db")}).status();
  EXPECT_EQ(opened.code(), absl::StatusCode::kFailedPrecondition) << opened;
  EXPECT_EQ(ErrorReason(opened), "STORE_CANNOT_OPEN") << opened;
  const absl::Status backup = BackUpStore(disk_.File("s.db"), other.File("backup.db")).status();
  EXPECT_EQ(ErrorReason(backup), "STORE_READ_ONLY") << backup;
}

// No file may grow beyond `bytes` while it lives: writing more fails as on a disk with errors.
class FileLimit {
 public:
  explicit FileLimit(uintmax_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{static_cast<rlim_t>(bytes), before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  sighandler_t handler_;
};

TEST(SqliteCommitTest, AfterAnErrorOfTheDiskAtCommitNothingIsWrittenAnyMore) {
  TemporaryFolder folder;
  std::vector<std::string> lost;
  {
    const auto store = SqliteStore::Open(
        {.path = folder.File("s.db"), .on_lost = [&](const absl::Status& why) { lost.push_back(ErrorReason(why)); }});
    ASSERT_TRUE(store.ok()) << store.status();
    const auto insert = [&](const std::string& id) {
      return (*store)->Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob(id)); });
    };
    ASSERT_TRUE(insert("j-1").ok());
    {
      const FileLimit limit(std::filesystem::file_size(folder.File("s.db-wal")));
      const absl::Status status = insert("j-2");
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_EQ(ErrorReason(status), "STORE_OUTCOME_UNKNOWN") << status;
    }
    EXPECT_EQ(lost, std::vector<std::string>{"STORE_OUTCOME_UNKNOWN"});
    EXPECT_EQ(ErrorReason(insert("j-3")), "STORE_OUTCOME_UNKNOWN") << "the disk is well again, memory is not";
  }
  const auto again = OpenOrDie(folder.File("s.db"));
  EXPECT_TRUE(again->GetJob("j-1").ok());
  EXPECT_EQ(ErrorReason(again->GetJob("j-3").status()), "JOB_UNKNOWN");
}

TEST(SqliteCommitTest, WhatFollowsATransactionThatSqliteEndedIsNotWrittenAlone) {
  TemporaryFolder folder;
  { OpenOrDie(folder.File("s.db")); }
  const auto database = SqliteDatabase::Open(folder.File("s.db"), absl::ZeroDuration(), OpenMode::kExisting);
  ASSERT_TRUE(database.ok()) << database.status();
  const auto adopt = [&](const char* epoch) {
    return (*database)->Prepare("UPDATE meta SET value = ? WHERE key = 'store_epoch'").Bind(epoch).Run();
  };
  ASSERT_TRUE((*database)->Begin().ok());
  ASSERT_TRUE(adopt("5").ok());
  // As SQLite does by itself where the disk cannot be read.
  ASSERT_TRUE((*database)->Execute("ROLLBACK").ok());
  EXPECT_EQ(ErrorReason(adopt("6")), "STORE_IO");
  EXPECT_EQ(ErrorReason((*database)->Commit()), "STORE_IO");
  (*database)->Rollback();
  const auto epoch = [&] {
    Statement row = (*database)->Prepare("SELECT value FROM meta WHERE key = 'store_epoch'");
    EXPECT_TRUE(row.Step().value());
    return row.Text();
  };
  EXPECT_EQ(epoch(), "0");
  ASSERT_TRUE((*database)->Begin().ok());
  ASSERT_TRUE(adopt("7").ok());
  ASSERT_TRUE((*database)->Commit().ok());
  EXPECT_EQ(epoch(), "7");
}

TEST(SqlitePageTest, APageThatGoesBadUnderAnOpenStoreIsDataLossAndNoWrongAnswer) {
  TemporaryFolder folder;
  {
    const auto store = OpenOrDie(folder.File("s.db"));
    for (int job = 0; job < 40; ++job) {
      ASSERT_TRUE(
          store->Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob("j-" + std::to_string(job))); })
              .ok());
    }
  }
  const auto store = OpenOrDie(folder.File("s.db"));
  {
    std::fstream file(folder.File("s.db"), std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<int64_t>(std::filesystem::file_size(folder.File("s.db")));
    file.seekp(4096 * 2);
    file << std::string(static_cast<size_t>(size - 4096 * 2), '\x5a');
  }
  // SQLite may have pages in memory; what it must read anew is found to be bad.
  bool found = false;
  for (int job = 0; job < 40; ++job) {
    const std::string id = "j-" + std::to_string(job);
    const auto record = store->GetJob(id);
    if (record.ok()) {
      EXPECT_EQ(*record, SmallJob(id));
      continue;
    }
    EXPECT_EQ(ErrorReason(record.status()), "STORE_CORRUPT") << record.status();
    found = true;
  }
  if (!found) {
    const absl::Status backup = BackUpStore(folder.File("s.db"), folder.File("backup.db")).status();
    EXPECT_EQ(ErrorReason(backup), "STORE_CORRUPT") << backup;
  }
}

}  // namespace
}  // namespace atl::store
