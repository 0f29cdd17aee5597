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

absl::Status Failed(std::string_view what, const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT) {
    return MakeError(absl::StatusCode::kUnavailable, "STORE_FULL",
                     fmt::format("{} {}: {}", what, path, std::strerror(error)));
  }
  if (error == EROFS || error == EACCES || error == EPERM) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_READ_ONLY",
                     fmt::format("{} {}: {}", what, path, std::strerror(error)));
  }
  return MakeError(absl::StatusCode::kUnavailable, "STORE_IO",
                   fmt::format("{} {}: {}", what, path, std::strerror(error)));
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

absl::StatusOr<int64_t> Number(Database& database, std::string_view sql) {
  Statement row = database.Prepare(sql);
  ATOLL_RETURN_IF_ERROR(row.Step().status());
  return row.Int();
}

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
  BackupFacts facts;
  ATOLL_ASSIGN_OR_RETURN(facts.store_id, Text(database, "SELECT value FROM meta WHERE key = 'store_id'"));
  ATOLL_ASSIGN_OR_RETURN(facts.epoch,
                         Number(database, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'store_epoch'"));
  ATOLL_ASSIGN_OR_RETURN(facts.revision,
                         Number(database, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'revision'"));
  ATOLL_ASSIGN_OR_RETURN(facts.jobs, Number(database, "SELECT count(*) FROM jobs"));
  return facts;
}

absl::StatusOr<BackupFacts> CopyTo(SqliteDatabase& source, const std::string& path, absl::Duration busy_timeout) {
  ATOLL_ASSIGN_OR_RETURN(const auto copy, SqliteDatabase::Open(path, busy_timeout, OpenMode::kExisting));
  ATOLL_RETURN_IF_ERROR(source.CopyTo(*copy));
  // One file, without a log beside it.
  ATOLL_RETURN_IF_ERROR(copy->Execute("PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL"));
  ATOLL_RETURN_IF_ERROR(copy->Execute("INSERT OR REPLACE INTO meta VALUES ('restored', '1')"));
  return Check(*copy);
}

absl::Status AlreadyThere(const std::string& path) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_EXISTS",
                   fmt::format("{} is there already: move it away first, or name another store", path));
}

// Whether there is a file; STORE_CANNOT_OPEN where that cannot be found out.
absl::StatusOr<bool> Exists(const std::string& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (!error) return there;
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN",
                   fmt::format("{}: {}", path, error.message()));
}

absl::Status CheckExists(const std::string& path) {
  ATOLL_ASSIGN_OR_RETURN(const bool there, Exists(path));
  if (there) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN",
                   fmt::format("{}: there is no such file", path));
}

}  // namespace

absl::StatusOr<BackupFacts> BackUpStore(const std::string& store_path, const std::string& backup_path,
                                        absl::Duration busy_timeout) {
  ATOLL_RETURN_IF_ERROR(CheckExists(store_path));
  std::error_code error;
  if (fs::equivalent(store_path, backup_path, error)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_EXISTS",
                     fmt::format("{}: expected another file for the backup than the store itself", backup_path));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto source, SqliteDatabase::Open(store_path, busy_timeout, OpenMode::kExisting));
  if (absl::Status status = CheckSchema(*source); !status.ok()) {
    return WithContext(status, fmt::format("store {}", store_path));
  }
  ATOLL_ASSIGN_OR_RETURN(const auto file, TemporaryFile::Make(backup_path));
  absl::StatusOr<BackupFacts> facts = CopyTo(*source, file->path(), busy_timeout);
  if (!facts.ok()) return WithContext(facts.status(), fmt::format("backing {} up to {}", store_path, backup_path));
  ATOLL_RETURN_IF_ERROR(Sync(file->path()));
  facts->bytes = static_cast<int64_t>(fs::file_size(file->path(), error));
  if (rename(file->path().c_str(), backup_path.c_str()) != 0) return Failed("cannot make", backup_path, errno);
  ATOLL_RETURN_IF_ERROR(Sync(FolderOfFile(backup_path)));
  return facts;
}

absl::StatusOr<BackupFacts> RestoreStore(const std::string& backup_path, const std::string& store_path) {
  ATOLL_RETURN_IF_ERROR(CheckExists(backup_path));
  for (const char* suffix : {"", "-wal"}) {
    ATOLL_ASSIGN_OR_RETURN(const bool there, Exists(store_path + suffix));
    if (there) return AlreadyThere(store_path + suffix);
  }
  ATOLL_ASSIGN_OR_RETURN(const auto source,
                         SqliteDatabase::Open(backup_path, absl::ZeroDuration(), OpenMode::kReadOnly));
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
  ATOLL_ASSIGN_OR_RETURN(const auto file, TemporaryFile::Make(store_path));
  absl::StatusOr<BackupFacts> facts = CopyTo(*source, file->path(), absl::ZeroDuration());
  if (!facts.ok()) return WithContext(facts.status(), fmt::format("restoring {} to {}", backup_path, store_path));
  ATOLL_RETURN_IF_ERROR(Sync(file->path()));
  std::error_code error;
  facts->bytes = static_cast<int64_t>(fs::file_size(file->path(), error));
  // A link never replaces a store that another process made meanwhile, nor a symbolic link that leads nowhere.
  if (link(file->path().c_str(), store_path.c_str()) != 0) {
    return errno == EEXIST ? AlreadyThere(store_path) : Failed("cannot make", store_path, errno);
  }
  ATOLL_RETURN_IF_ERROR(Sync(FolderOfFile(store_path)));
  return facts;
}

}  // namespace atl::store
