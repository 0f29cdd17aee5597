// The interface between the store's SQL, which is written once, and the databases that run it. Private to
// coordinator/store.
//
// The SQL is the common subset of SQLite and PostgreSQL: '?' for parameters, ON CONFLICT, RETURNING, BIGINT in casts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::store {

// One run of a statement in a database. Columns are read by number, from 0.
class Cursor {
 public:
  virtual ~Cursor() = default;

  virtual void BindInt(int64_t value) = 0;
  virtual void BindText(std::string_view text) = 0;
  virtual void BindBlob(std::string_view bytes) = 0;
  virtual void BindNull() = 0;
  // Returns whether there is a row.
  virtual absl::StatusOr<bool> Step() = 0;
  virtual bool IsNull(int column) = 0;
  virtual int64_t Int(int column) = 0;
  virtual std::string Text(int column) = 0;
};

// One run of a prepared statement: bind in order, then Step or Run, then read columns in order. Belongs to its
// Database, which must outlive it; resets itself. The same SQL must not have two runs at the same time.
class Statement {
 public:
  explicit Statement(std::unique_ptr<Cursor> cursor) : cursor_(std::move(cursor)) {}

  Statement& Bind(int64_t value) {
    cursor_->BindInt(value);
    return *this;
  }
  Statement& Bind(std::string_view text) {
    cursor_->BindText(text);
    return *this;
  }
  Statement& BindBlob(std::string_view bytes) {
    cursor_->BindBlob(bytes);
    return *this;
  }
  // Binds microseconds since the epoch; NULL for InfinitePast.
  Statement& Bind(absl::Time time) {
    if (time != absl::InfinitePast()) return Bind(absl::ToUnixMicros(time));
    cursor_->BindNull();
    return *this;
  }

  // Returns whether there is a row. Errors of preparing and binding appear here.
  absl::StatusOr<bool> Step() {
    read_ = 0;
    return cursor_->Step();
  }
  // Runs a statement that returns no rows.
  absl::Status Run() { return Step().status(); }

  int64_t Int() { return cursor_->Int(read_++); }
  std::string Text() { return cursor_->Text(read_++); }
  absl::Time Time() {
    const int column = read_++;
    return cursor_->IsNull(column) ? absl::InfinitePast() : absl::FromUnixMicros(cursor_->Int(column));
  }

 private:
  std::unique_ptr<Cursor> cursor_;
  int read_ = 0;
};

enum class Dialect : uint8_t { kSqlite, kPostgres };

// One connection. Not thread-safe. Errors as in store.h.
class Database {
 public:
  virtual ~Database() = default;

  virtual Dialect dialect() const = 0;
  // Runs one or more statements without parameters.
  virtual absl::Status Execute(const std::string& sql) = 0;
  // Returns a cached prepared statement. `sql` is a literal: a malformed one is a bug, and Step returns the error.
  virtual Statement Prepare(std::string_view sql) = 0;
  // The number of rows changed by the last statement.
  virtual int64_t changes() const = 0;

  // Begins a transaction that writes; no other writing transaction can begin until it ends.
  virtual absl::Status Begin() = 0;
  // UNAVAILABLE (STORE_OUTCOME_UNKNOWN) when the transaction may be durable or not. After any other error it is not.
  virtual absl::Status Commit() = 0;
  // Ends a transaction, even if the database has already ended it.
  virtual void Rollback() = 0;
};

// Returns the error of a commit whose answer is missing, so that its outcome is unknown.
absl::Status OutcomeUnknown(const absl::Status& error);

}  // namespace atl::store
