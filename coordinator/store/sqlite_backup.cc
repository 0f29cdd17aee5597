#include "coordinator/store/sqlite_backup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/sqlite_database.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kBusyTimeout = absl::Seconds(5);

absl::Status Failed(std::string_view what, const std::string& path, int error) {
  const std::string message = fmt::format("{} {}: {}", what, path, std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) return MakeError(absl::StatusCode::kUnavailable, "STORE_FULL", message);
  if (error == EROFS || error == EACCES || error == EPERM) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_READ_ONLY", message);
  }
  return MakeError(absl::StatusCode::kUnavailable, "STORE_IO", message);
}

absl::Status Sync(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return Failed("cannot open", path, errno);
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  return error == 0 ? absl::OkStatus() : Failed("cannot sync", path, error);
}

std::string FolderOfFile(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// An empty file that only its owner may read, as a store; gone with the object unless it was moved away.
class TemporaryFile {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFile>> Make(const std::string& path) {
    std::error_code error;
    fs::create_directories(FolderOfFile(path), error);
    if (error) return Failed("cannot make the folder of", path, error.value());
    std::string name = path + ".XXXXXX";
    const int descriptor = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor < 0) return Failed("cannot make", name, errno);
    close(descriptor);
    return std::unique_ptr<TemporaryFile>(new TemporaryFile(std::move(name)));
  }
  ~TemporaryFile() {
    std::error_code error;
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) fs::remove(path_ + suffix, error);
  }

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

absl::StatusOr<std::string> Text(Database& database, std::string_view sql) {
  Statement row = database.Prepare(sql);
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
  return found ? row.Text() : std::string();
}

// Every page, key and reference, and what the file says of itself.
absl::StatusOr<BackupFacts> Check(Database& database) {
  ATOLL_RETURN_IF_ERROR(CheckSchema(database));
  ATOLL_ASSIGN_OR_RETURN(const std::string pages, Text(database, "PRAGMA integrity_check(1)"));
  if (pages != "ok") {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", fmt::format("integrity_check: {}", pages));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string orphans, Text(database, "PRAGMA foreign_key_check"));
  if (!orphans.empty()) {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                     fmt::format("a row of table {} belongs to nothing", orphans));
  }
  Statement meta = database.Prepare(
      "SELECT (SELECT value FROM meta WHERE key = 'store_id'), CAST((SELECT value FROM meta WHERE key = 'store_epoch') "
      "AS INTEGER), CAST((SELECT value FROM meta WHERE key = 'revision') AS INTEGER), (SELECT count(*) FROM jobs)");
  ATOLL_RETURN_IF_ERROR(meta.Step().status());
  BackupFacts facts;
  facts.store_id = meta.Text();
  facts.epoch = meta.Int();
  facts.revision = meta.Int();
  facts.jobs = meta.Int();
  return facts;
}

absl::Status AlreadyThere(const std::string& path) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_EXISTS",
                   fmt::format("{} is there already: move it away first, or name another store", path));
}

absl::StatusOr<BackupFacts> CopyInto(SqliteDatabase& source, const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const auto copy, SqliteDatabase::Open(path, kBusyTimeout, OpenMode::kExisting));
  ATOLL_RETURN_IF_ERROR(source.CopyTo(*copy));
  // One file, without a log beside it.
  ATOLL_RETURN_IF_ERROR(copy->Execute("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL"));
  ATOLL_RETURN_IF_ERROR(copy->Execute("INSERT OR REPLACE INTO meta VALUES ('restored', '1')"));
  return Check(*copy);
}

// Makes a marked, checked and synced copy of `source` at `path`. `doing` is for errors.
absl::StatusOr<BackupFacts> CopyTo(SqliteDatabase& source, const std::string& path, bool replace,
                                   std::string_view doing) {
  ATOLL_ASSIGN_OR_RETURN(const auto file, TemporaryFile::Make(path));
  absl::StatusOr<BackupFacts> facts = CopyInto(source, file->path());
  if (!facts.ok()) return WithContext(facts.status(), doing);
  ATOLL_RETURN_IF_ERROR(Sync(file->path()));
  std::error_code error;
  facts->bytes = static_cast<int64_t>(fs::file_size(file->path(), error));
  // A link never replaces a store that another process made meanwhile, nor a symbolic link that leads nowhere.
  const char* const made = file->path().c_str();
  if ((replace ? rename(made, path.c_str()) : link(made, path.c_str())) != 0) {
    return errno == EEXIST ? AlreadyThere(path) : Failed("cannot make", path, errno);
  }
  ATOLL_RETURN_IF_ERROR(Sync(FolderOfFile(path)));
  return facts;
}

}  // namespace

absl::StatusOr<BackupFacts> BackUpStore(const std::string& store_path, const std::string& backup_path) {
  std::error_code error;
  if (fs::equivalent(store_path, backup_path, error)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_EXISTS",
                     fmt::format("{}: expected another file for the backup than the store itself", backup_path));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto source, SqliteDatabase::Open(store_path, kBusyTimeout, OpenMode::kExisting));
  if (absl::Status status = CheckSchema(*source); !status.ok()) {
    return WithContext(status, fmt::format("store {}", store_path));
  }
  return CopyTo(*source, backup_path, /*replace=*/true, fmt::format("backing {} up to {}", store_path, backup_path));
}

absl::StatusOr<BackupFacts> RestoreStore(const std::string& backup_path, const std::string& store_path) {
  std::error_code error;
  for (const char* suffix : {"", "-wal"}) {
    if (fs::exists(store_path + suffix, error)) return AlreadyThere(store_path + suffix);
  }
  ATOLL_ASSIGN_OR_RETURN(const auto source, SqliteDatabase::Open(backup_path, kBusyTimeout, OpenMode::kReadOnly));
  if (absl::Status status = CheckSchema(*source); !status.ok()) {
    return WithContext(status, fmt::format("backup {}", backup_path));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string marked, Text(*source, "SELECT value FROM meta WHERE key = 'restored'"));
  if (marked != "1") {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NOT_A_BACKUP",
                     fmt::format("{}: expected a backup made by --backup, found a store; a copy of a store's file may "
                                 "lack its newest transactions",
                                 backup_path));
  }
  return CopyTo(*source, store_path, /*replace=*/false, fmt::format("restoring {} to {}", backup_path, store_path));
}

}  // namespace atl::store
