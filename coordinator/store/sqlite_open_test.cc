// The errors of opening a file that is in use, locked, read-only, corrupt, foreign or of a newer build.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "common/base/errors.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/sqlite_database.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/test_support.h"
#include "gmock/gmock.h"

namespace atl::store {
namespace {

using ::testing::HasSubstr;

absl::Status OpenStatus(const std::string& path) {
  return SqliteStore::Open({path, absl::Milliseconds(20)}).status();
}

TEST(SqliteOpenTest, ASecondCoordinatorIsRefusedAndToldWhoHasTheStore) {
  TemporaryFolder folder;
  const auto store = OpenOrDie(folder.File("s.db"));
  const absl::Status status = OpenStatus(folder.File("s.db"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "STORE_IN_USE");
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(getpid())));
}

TEST(SqliteOpenTest, LinksToAStoreLeadToItsOneLock) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder.File("real"));
  std::filesystem::create_directory(folder.File("links"));
  { OpenOrDie(folder.File("real/s.db")); }
  // By another link and a relative one.
  std::filesystem::create_symlink("../real/s.db", folder.File("links/a.db"));
  std::filesystem::create_symlink(folder.File("links/a.db"), folder.File("links/b.db"));
  std::filesystem::create_directory_symlink(folder.File("real"), folder.File("folder"));
  const auto store = OpenOrDie(folder.File("links/b.db"));
  EXPECT_TRUE(std::filesystem::exists(folder.File("real/s.db.lock")));
  for (const char* name : {"real/s.db", "links/a.db", "links/b.db", "folder/s.db", "links/../folder/./s.db"}) {
    EXPECT_EQ(ErrorReason(OpenStatus(folder.File(name))), "STORE_IN_USE") << name;
  }
}

TEST(SqliteOpenTest, ALogWithoutItsStoreIsKept) {
  TemporaryFolder folder;
  TemporaryFolder moved;
  {
    const auto store = OpenOrDie(folder.File("s.db"));
    ASSERT_TRUE(store->AdoptEpoch(3).ok());
    for (const char* name : {"s.db", "s.db-wal"}) std::filesystem::copy_file(folder.File(name), moved.File(name));
  }
  std::filesystem::rename(moved.File("s.db"), moved.File("elsewhere.db"));
  const auto bytes = std::filesystem::file_size(moved.File("s.db-wal"));
  const absl::Status status = OpenStatus(moved.File("s.db"));
  EXPECT_EQ(ErrorReason(status), "STORE_CANNOT_OPEN") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("s.db-wal: expected the store"));
  EXPECT_FALSE(std::filesystem::exists(moved.File("s.db")));
  EXPECT_EQ(std::filesystem::file_size(moved.File("s.db-wal")), bytes);
  std::filesystem::rename(moved.File("elsewhere.db"), moved.File("s.db"));
  EXPECT_EQ(OpenOrDie(moved.File("s.db"))->epoch(), 3);
}

TEST(SqliteOpenTest, TheStoreIsItsOwnersAlone) {
  const auto modes = [](const TemporaryFolder& folder) {
    std::map<std::string, int> modes;
    for (const auto& entry : std::filesystem::directory_iterator(folder.File(""))) {
      modes[entry.path().filename()] = static_cast<int>(entry.status().permissions());
    }
    return modes;
  };
  const std::map<std::string, int> closed = {
      {"s.db", 0600}, {"s.db-shm", 0600}, {"s.db-wal", 0600}, {"s.db.lock", 0600}};
  const mode_t before = umask(0);
  TemporaryFolder folder;
  {
    const auto store = OpenOrDie(folder.File("s.db"));
    EXPECT_EQ(modes(folder), closed);
  }
  umask(before);
}

TEST(SqliteOpenTest, ALockedDatabaseIsUnavailable) {
  TemporaryFolder folder;
  { OpenOrDie(folder.File("s.db")); }
  auto other = SqliteDatabase::Open(folder.File("s.db"), absl::ZeroDuration());
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE((*other)->Execute("BEGIN EXCLUSIVE").ok());
  const absl::Status status = OpenStatus(folder.File("s.db"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "STORE_LOCKED") << status;
}

TEST(SqliteOpenTest, AFileThatIsNoDatabaseIsDataLoss) {
  TemporaryFolder folder;
  std::ofstream(folder.File("s.db")) << std::string(8192, 'x');
  const absl::Status status = OpenStatus(folder.File("s.db"));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorReason(status), "STORE_CORRUPT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("s.db"));
}

TEST(SqliteOpenTest, DamagedPagesAreFoundAtOpening) {
  TemporaryFolder folder;
  {
    const auto store = OpenOrDie(folder.File("s.db"));
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(
          store->Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob("j-" + std::to_string(i))); }).ok());
    }
  }
  std::fstream file(folder.File("s.db"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(200'000, '\x5a');
  file.close();
  EXPECT_EQ(ErrorReason(OpenStatus(folder.File("s.db"))), "STORE_CORRUPT");
}

TEST(SqliteOpenTest, AnotherProgramsDatabaseIsLeftAlone) {
  TemporaryFolder folder;
  {
    auto other = SqliteDatabase::Open(folder.File("s.db"), absl::ZeroDuration());
    ASSERT_TRUE(other.ok());
    ASSERT_TRUE((*other)->Execute("CREATE TABLE recipes (name TEXT)").ok());
  }
  const absl::Status status = OpenStatus(folder.File("s.db"));
  EXPECT_EQ(ErrorReason(status), "STORE_CORRUPT");
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected a coordinator's store"));
}

TEST(SqliteOpenTest, ANewerSchemaIsRefusedUntouched) {
  TemporaryFolder folder;
  { OpenOrDie(folder.File("s.db")); }
  {
    auto other = SqliteDatabase::Open(folder.File("s.db"), absl::ZeroDuration());
    ASSERT_TRUE(other.ok());
    ASSERT_TRUE((*other)->Execute("INSERT INTO schema_version VALUES (99, 0)").ok());
  }
  const absl::Status status = OpenStatus(folder.File("s.db"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "STORE_TOO_NEW");
  EXPECT_THAT(std::string(status.message()), HasSubstr("found 99"));
}

TEST(SqliteOpenTest, APlaceThatCannotBeWrittenIsAPrecondition) {
  const absl::Status status = OpenStatus("/proc/atoll/s.db");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "STORE_CANNOT_OPEN") << status;
}

TEST(SqliteOpenTest, ReadOnlyErrorsAreNamed) {
  // Root may write any file, so the code is checked rather than a file's mode.
  EXPECT_EQ(ErrorReason(SqliteError(8 /* SQLITE_READONLY */, "writing", "attempt to write")), "STORE_READ_ONLY");
  EXPECT_EQ(ErrorReason(SqliteError(13 /* SQLITE_FULL */, "writing", "disk full")), "STORE_FULL");
  EXPECT_EQ(ErrorReason(SqliteError(10 /* SQLITE_IOERR */, "writing", "I/O")), "STORE_IO");
}

// A made-up second schema: it becomes the first one's, once, and not at all where it fails.
TEST(SqliteOpenTest, AnOlderSchemaIsMigratedWholeOrNotAtAll) {
  TemporaryFolder folder;
  { OpenOrDie(folder.File("s.db")); }
  auto database = SqliteDatabase::Open(folder.File("s.db"), absl::ZeroDuration());
  ASSERT_TRUE(database.ok());
  const auto count = [&](std::string_view sql) {
    Statement row = (*database)->Prepare(sql);
    EXPECT_TRUE(row.Step().ok()) << sql;
    return row.Int();
  };
  const char* kVersion = "SELECT max(version) FROM schema_version";
  ASSERT_EQ(count(kVersion), 1);

  const absl::Status failed =
      Migrate(**database, {Migrations()[0], "ALTER TABLE jobs ADD COLUMN color TEXT; CREATE TABLE jobs (x);"});
  EXPECT_THAT(std::string(failed.message()), HasSubstr("migrating to schema version 2")) << failed;
  EXPECT_EQ(count(kVersion), 1);
  EXPECT_EQ(count("SELECT count(*) FROM pragma_table_info('jobs') WHERE name = 'color'"), 0);

  const auto painted = {Migrations()[0], "ALTER TABLE jobs ADD COLUMN color TEXT NOT NULL DEFAULT 'red';"};
  for (int times = 0; times < 2; ++times) {
    const absl::Status migrated = Migrate(**database, painted);
    ASSERT_TRUE(migrated.ok()) << migrated;
    EXPECT_EQ(count("SELECT count(*) FROM schema_version"), 2);
    EXPECT_EQ(count("SELECT count(*) FROM pragma_table_info('jobs') WHERE name = 'color'"), 1);
  }
  database->reset();
  EXPECT_EQ(ErrorReason(OpenStatus(folder.File("s.db"))), "STORE_TOO_NEW") << "this build has the first one alone";
}

}  // namespace
}  // namespace atl::store
