// The seam between the store's SQL, which is written once, and the databases that run it. Private to coordinator/store.
//
// SQL is what SQLite and PostgreSQL both take: '?' for parameters, ON CONFLICT, RETURNING, BIGINT in casts.
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

// What a database does for one run of a statement. Columns are read by number, from 0.
class Cursor {
 public:
  virtual ~Cursor() = default;

  virtual void BindInt(int64_t value) = 0;
  virtual void BindText(std::string_view text) = 0;
  virtual void BindBlob(std::string_view bytes) = 0;
  virtual void BindNull() = 0;
  // Whether there is a row.
  virtual absl::StatusOr<bool> Step() = 0;
  virtual bool IsNull(int column) = 0;
  virtual int64_t Int(int column) = 0;
  virtual std::string Text(int column) = 0;
};

// One run of a prepared statement: bind in order, then Step or Run, then read columns in order. Belongs to its
// Database, which must outlive it; resets itself. Two runs of the same SQL must not be alive at once.
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
  // Microseconds since the epoch; NULL for InfinitePast.
  Statement& Bind(absl::Time time) {
    if (time != absl::InfinitePast()) return Bind(absl::ToUnixMicros(time));
    cursor_->BindNull();
    return *this;
  }

  // Whether there is a row. Errors of preparing and binding come here.
  absl::StatusOr<bool> Step() {
    read_ = 0;
    return cursor_->Step();
  }
  // Runs a statement that answers no rows.
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
  // A cached prepared statement. `sql` is a literal: a bad one is a bug, and comes back as an error at Step.
  virtual Statement Prepare(std::string_view sql) = 0;
  // Rows changed by the last statement.
  virtual int64_t changes() const = 0;

  // A transaction that writes; nobody else's can begin until it ends.
  virtual absl::Status Begin() = 0;
  // UNAVAILABLE (STORE_OUTCOME_UNKNOWN) when the transaction may be durable or not. After any other error it is not.
  virtual absl::Status Commit() = 0;
  // Ends a transaction, also one that the database has ended already.
  virtual void Rollback() = 0;
};

// Why a commit whose answer is missing cannot be answered either way.
absl::Status OutcomeUnknown(const absl::Status& error);

}  // namespace atl::store
