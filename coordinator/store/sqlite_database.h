// A thin, typed shell around the sqlite3 C API: statements that cannot leak, results as absl::Status.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

struct sqlite3;
struct sqlite3_stmt;

namespace atl::store {

// One run of a prepared statement: bind in order, then Step or Run, then read columns in order. Belongs to its
// Database, which must outlive it; resets itself.
class Statement {
 public:
  Statement(sqlite3* database, sqlite3_stmt* statement) : database_(database), statement_(statement) {}
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  Statement& Bind(int64_t value);
  Statement& Bind(std::string_view text);
  Statement& BindBlob(std::string_view bytes);
  // Microseconds since the epoch; NULL for InfinitePast.
  Statement& Bind(absl::Time time);

  // Whether there is a row.
  absl::StatusOr<bool> Step();
  // Runs a statement that answers no rows.
  absl::Status Run();

  int64_t Int();
  std::string Text();
  absl::Time Time();

 private:
  sqlite3* const database_;
  sqlite3_stmt* statement_;
  int bound_ = 0;
  int read_ = 0;
  absl::Status bind_error_;
};

// One connection. Not thread-safe.
class Database {
 public:
  // Creates the file when absent. Errors as in store.h.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, absl::Duration busy_timeout);
  ~Database();

  // Runs one or more statements without parameters.
  absl::Status Execute(const std::string& sql);
  // A cached prepared statement. `sql` is a literal: a bad one is a bug, and comes back as an error at Step.
  Statement Prepare(std::string_view sql);
  // Rows changed by the last statement.
  int64_t changes() const;

 private:
  Database(std::string path, sqlite3* database) : path_(std::move(path)), database_(database) {}

  const std::string path_;
  sqlite3* const database_;
  std::unordered_map<std::string, sqlite3_stmt*> statements_;
};

// The error of a sqlite3 result code, as store.h names them.
absl::Status SqliteError(int code, std::string_view doing, std::string_view message);

}  // namespace atl::store
