// Database over the sqlite3 C API.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/store/sql_database.h"

struct sqlite3;
struct sqlite3_stmt;

namespace atl::store {

enum class OpenMode : uint8_t { kCreate, kExisting, kReadOnly };

class SqliteDatabase : public Database {
 public:
  // kCreate makes a missing file. Errors as in store.h.
  static absl::StatusOr<std::unique_ptr<SqliteDatabase>> Open(const std::string& path, absl::Duration busy_timeout,
                                                              OpenMode mode = OpenMode::kCreate);
  ~SqliteDatabase() override;

  Dialect dialect() const override { return Dialect::kSqlite; }
  absl::Status Execute(const std::string& sql) override;
  Statement Prepare(std::string_view sql) override;
  int64_t changes() const override;
  absl::Status Begin() override;
  absl::Status Commit() override;
  void Rollback() override;

  // Makes `target` equal to this database at one moment between two transactions. Other connections may write to this
  // database meanwhile, but not to `target`.
  absl::Status CopyTo(SqliteDatabase& target);

 private:
  SqliteDatabase(std::string path, sqlite3* database) : path_(std::move(path)), database_(database) {}

  // Returns OK, or STORE_IO if SQLite has ended the running transaction, as it does after some errors.
  absl::Status CheckTransaction() const;

  const std::string path_;
  sqlite3* const database_;
  bool in_transaction_ = false;
  std::unordered_map<std::string, sqlite3_stmt*> statements_;
};

// Returns the error of a sqlite3 result code, as store.h names them.
absl::Status SqliteError(int code, std::string_view doing, std::string_view message);

}  // namespace atl::store
