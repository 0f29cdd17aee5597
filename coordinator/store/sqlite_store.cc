#include "coordinator/store/sqlite_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/store/sqlite_database.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::store {
namespace {

absl::Status CannotOpen(std::string_view path, std::string_view why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN", fmt::format("{}: {}", path, why));
}

// SQLite throws the log of a file that is not there away, and with it what was acknowledged last.
absl::Status CheckLogHasItsStore(const std::string& path) {
  std::error_code error;
  const auto size = [&](const std::string& name) {
    const uintmax_t bytes = std::filesystem::file_size(name, error);
    return error ? 0 : bytes;
  };
  const std::string log = path + "-wal";
  if (size(log) == 0 || size(path) > 0) return absl::OkStatus();
  return CannotOpen(log, fmt::format("expected the store {} beside its log, found none; put it back, or move the log "
                                     "away to begin anew",
                                     path));
}

// An exclusive lock on "<store>.lock" that ends with the process, however it ends. Holds the owner's process id, for
// the message that the second one gets.
absl::StatusOr<int> LockStore(const std::string& store_path) {
  const std::string path = store_path + ".lock";
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor < 0) return CannotOpen(path, std::strerror(errno));
  char owner[32] = {};
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    const ssize_t size = pread(descriptor, owner, sizeof owner - 1, 0);
    close(descriptor);
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_IN_USE",
                     fmt::format("store {} belongs to a running coordinator (process {}); stop it first or use another "
                                 "store",
                                 store_path, size > 0 ? owner : "unknown"));
  }
  const std::string self = fmt::format("{}", getpid());
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, self.data(), self.size(), 0) < 0) {
    const int error = errno;
    close(descriptor);
    return CannotOpen(path, std::strerror(error));
  }
  return descriptor;
}

// A store that is made is its owner's alone, whatever the umask; SQLite makes the files beside it like it.
void MakeForOwnerAlone(const std::string& path) {
  const int made = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (made >= 0) close(made);
}

absl::StatusOr<std::unique_ptr<Database>> OpenChecked(const SqliteStoreOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<SqliteDatabase> database,
                         SqliteDatabase::Open(options.path, options.busy_timeout));
  // EXTRA is FULL, and where SQLite cannot have its log it also syncs the folder of the journal: else a journal that
  // was deleted could be back after a power cut, and take back the last commit.
  ATOLL_RETURN_IF_ERROR(
      database->Execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = EXTRA; PRAGMA foreign_keys = ON"));
  {
    Statement mode = database->Prepare("PRAGMA journal_mode");
    ATOLL_ASSIGN_OR_RETURN(const bool known, mode.Step());
    if (const std::string name = known ? mode.Text() : "unknown"; name != "wal") {
      spdlog::warn(
          "store {}: SQLite cannot keep a log here (journal_mode {}), as on file systems of the network: writes are "
          "slower, and wait for backups; a disk of this machine is better",
          options.path, name);
    }
  }
  Statement check = database->Prepare("PRAGMA quick_check(1)");
  ATOLL_ASSIGN_OR_RETURN(const bool row, check.Step());
  if (const std::string result = row ? check.Text() : "no answer"; result != "ok") {
    return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", fmt::format("quick_check: {}", result));
  }
  return database;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::Open(SqliteStoreOptions options) {
  std::error_code error;
  // The file's own name: SQLite's log and the lock lie beside it, whichever links lead there.
  const std::filesystem::path real = std::filesystem::weakly_canonical(options.path, error);
  if (!error) options.path = real.string();
  const std::filesystem::path folder = std::filesystem::path(options.path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return CannotOpen(folder.string(), error.message());
  ATOLL_RETURN_IF_ERROR(CheckLogHasItsStore(options.path));
  ATOLL_ASSIGN_OR_RETURN(const int lock, LockStore(options.path));
  std::unique_ptr<SqliteStore> store(new SqliteStore(options, lock));
  MakeForOwnerAlone(options.path);
  auto database = OpenChecked(options);
  const absl::Status status = database.ok() ? store->Load(*std::move(database)) : database.status();
  if (!status.ok()) return WithContext(status, fmt::format("store {}", options.path));
  return store;
}

SqliteStore::~SqliteStore() {
  CloseDatabase();
  close(lock_descriptor_);
}

}  // namespace atl::store
