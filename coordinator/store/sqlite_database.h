// A thin, typed shell around the sqlite3 C API: statements that cannot leak, results as absl::Status.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

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
  // `error`: why there is no statement; comes back at Step.
  Statement(sqlite3* database, sqlite3_stmt* statement, absl::Status error)
      : database_(database), statement_(statement), error_(std::move(error)) {}
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
  absl::Status error_;
};

enum class OpenMode : uint8_t { kCreate, kExisting, kReadOnly };

// One connection. Not thread-safe.
class Database {
 public:
  // kCreate makes the file when it is absent. Errors as in store.h.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, absl::Duration busy_timeout,
                                                        OpenMode mode = OpenMode::kCreate);
  ~Database();

  // Runs one or more statements without parameters.
  absl::Status Execute(const std::string& sql);
  // A cached prepared statement. `sql` is a literal: a bad one is a bug, and comes back as an error at Step.
  Statement Prepare(std::string_view sql);
  // Rows changed by the last statement.
  int64_t changes() const;
  // Makes `target` equal to this database as it is at one moment, between two transactions. Other connections may
  // write meanwhile; those that write to `target` are in error.
  absl::Status CopyTo(Database& target);

 private:
  Database(std::string path, sqlite3* database) : path_(std::move(path)), database_(database) {}

  const std::string path_;
  sqlite3* const database_;
  std::unordered_map<std::string, sqlite3_stmt*> statements_;
};

// The error of a sqlite3 result code, as store.h names them.
absl::Status SqliteError(int code, std::string_view doing, std::string_view message);

}  // namespace atl::store
