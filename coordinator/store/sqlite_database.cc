#include "coordinator/store/sqlite_database.h"

#include <sqlite3.h>

#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::store {

absl::Status SqliteError(int code, std::string_view doing, std::string_view message) {
  const std::string text = fmt::format("{}: {} ({})", doing, message, sqlite3_errstr(code));
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return MakeError(absl::StatusCode::kUnavailable, "STORE_LOCKED", text + "; another process holds the database");
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_AUTH:
      return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_READ_ONLY", text);
    case SQLITE_CANTOPEN:
      return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN", text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", text);
    case SQLITE_FULL:
      return MakeError(absl::StatusCode::kUnavailable, "STORE_FULL", text);
    case SQLITE_IOERR:
      return MakeError(absl::StatusCode::kUnavailable, "STORE_IO", text);
    default:
      return MakeError(absl::StatusCode::kInternal, "STORE_ERROR", text);
  }
}

namespace {

class SqliteCursor : public Cursor {
 public:
  // `error`: why there is no statement; comes back at Step.
  SqliteCursor(sqlite3* database, sqlite3_stmt* statement, absl::Status error)
      : database_(database), statement_(statement), error_(std::move(error)) {}
  ~SqliteCursor() override {
    if (statement_ == nullptr) return;
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }

  void BindInt(int64_t value) override { sqlite3_bind_int64(statement_, ++bound_, value); }
  void BindText(std::string_view text) override {
    Check("binding text", sqlite3_bind_text64(statement_, ++bound_, text.data() == nullptr ? "" : text.data(),
                                              text.size(), SQLITE_TRANSIENT, SQLITE_UTF8));
  }
  void BindBlob(std::string_view bytes) override {
    Check("binding bytes", sqlite3_bind_blob64(statement_, ++bound_, bytes.data() == nullptr ? "" : bytes.data(),
                                               bytes.size(), SQLITE_TRANSIENT));
  }
  void BindNull() override { sqlite3_bind_null(statement_, ++bound_); }

  absl::StatusOr<bool> Step() override {
    if (!error_.ok()) return error_;
    const int code = sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return SqliteError(code, sqlite3_sql(statement_), sqlite3_errmsg(database_));
  }

  bool IsNull(int column) override { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }
  int64_t Int(int column) override { return sqlite3_column_int64(statement_, column); }
  std::string Text(int column) override {
    const void* bytes = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return bytes == nullptr ? std::string() : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
  }

 private:
  void Check(std::string_view doing, int code) {
    if (code != SQLITE_OK && error_.ok()) error_ = SqliteError(code, doing, sqlite3_errmsg(database_));
  }

  sqlite3* const database_;
  sqlite3_stmt* const statement_;
  int bound_ = 0;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteDatabase>> SqliteDatabase::Open(const std::string& path,
                                                                     absl::Duration busy_timeout, OpenMode mode) {
  sqlite3* handle = nullptr;
  int flags = SQLITE_OPEN_NOMUTEX;
  flags |= mode == OpenMode::kReadOnly ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE;
  if (mode == OpenMode::kCreate) flags |= SQLITE_OPEN_CREATE;
  const int code = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  std::unique_ptr<SqliteDatabase> database(new SqliteDatabase(path, handle));
  if (code != SQLITE_OK) {
    return SqliteError(code, fmt::format("opening store {}", path), handle ? sqlite3_errmsg(handle) : "no memory");
  }
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, static_cast<int>(absl::ToInt64Milliseconds(busy_timeout)));
  return database;
}

SqliteDatabase::~SqliteDatabase() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(database_);
}

absl::Status SqliteDatabase::Execute(const std::string& sql) {
  char* message = nullptr;
  const int code = sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, &message);
  if (code == SQLITE_OK) return absl::OkStatus();
  const std::string text = message == nullptr ? sqlite3_errmsg(database_) : message;
  sqlite3_free(message);
  return SqliteError(code, fmt::format("store {}: {}", path_, sql.substr(0, 60)), text);
}

absl::Status SqliteDatabase::CheckTransaction() const {
  if (!in_transaction_ || sqlite3_get_autocommit(database_) == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "STORE_IO",
                   fmt::format("store {}: the transaction ended with an error of the disk", path_));
}

Statement SqliteDatabase::Prepare(std::string_view sql) {
  const auto it = statements_.try_emplace(std::string(sql), nullptr).first;
  // Alone, the statement would be durable, and what the transaction did before it would not.
  absl::Status error = CheckTransaction();
  if (error.ok() && it->second == nullptr) {
    const int code =
        sqlite3_prepare_v3(database_, it->first.c_str(), -1, SQLITE_PREPARE_PERSISTENT, &it->second, nullptr);
    // A damaged file or one that is no database is found here first.
    if (code != SQLITE_OK) error = SqliteError(code, "preparing", sqlite3_errmsg(database_));
  }
  return Statement(std::make_unique<SqliteCursor>(database_, it->second, std::move(error)));
}

int64_t SqliteDatabase::changes() const {
  return sqlite3_changes64(database_);
}

absl::Status SqliteDatabase::Begin() {
  ATOLL_RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
  in_transaction_ = true;
  return absl::OkStatus();
}

absl::Status SqliteDatabase::Commit() {
  const absl::Status still = CheckTransaction();
  in_transaction_ = false;
  ATOLL_RETURN_IF_ERROR(still);
  absl::Status status = Execute("COMMIT");
  // The record of the commit may lie on the disk although writing or syncing it failed, and count after a new start.
  return ErrorReason(status) == "STORE_IO" ? OutcomeUnknown(status) : status;
}

void SqliteDatabase::Rollback() {
  in_transaction_ = false;
  // After some errors SQLite has already rolled back; saying so again is then an error that changes nothing.
  (void)Execute("ROLLBACK");
}

absl::Status SqliteDatabase::CopyTo(SqliteDatabase& target) {
  const std::string doing = fmt::format("copying {} to {}", path_, target.path_);
  sqlite3_backup* copy = sqlite3_backup_init(target.database_, "main", database_, "main");
  if (copy == nullptr) {
    return SqliteError(sqlite3_errcode(target.database_), doing, sqlite3_errmsg(target.database_));
  }
  // All pages in one step: it holds one reading transaction, beside which others may write. Smaller steps would start
  // again whenever the source changes.
  (void)sqlite3_backup_step(copy, -1);
  const int code = sqlite3_backup_finish(copy);
  return code == SQLITE_OK ? absl::OkStatus() : SqliteError(code, doing, sqlite3_errmsg(target.database_));
}

}  // namespace atl::store
