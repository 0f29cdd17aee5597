// Database over libpq.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/store/sql_database.h"

struct pg_conn;
struct pg_result;

namespace atl::store {

// Whether `store` is a URI: "postgres://…" or "postgresql://…".
bool IsPgUri(std::string_view store);

// The address of a database, as libpq's keywords and values.
struct PgTarget {
  std::string name;  // "postgres://user@host:port/database", for messages
  std::vector<std::pair<std::string, std::string>> parameters;
};

// INVALID_ARGUMENT: STORE_URI_INVALID; STORE_PASSWORD_IN_URI, because every user of a machine can see command lines. No
// message repeats a possible password.
absl::StatusOr<PgTarget> ParsePgUri(const std::string& uri);

class PgDatabase : public Database {
 public:
  // Connects, and checks that the server keeps what it acknowledges: FAILED_PRECONDITION (STORE_NOT_DURABLE,
  // STORE_CANNOT_OPEN, STORE_READ_ONLY). UNAVAILABLE (STORE_UNREACHABLE). No statement and no lock takes longer than
  // `timeout`, and the server ends a transaction that is idle for as long. If the server does not answer for twice
  // `timeout`, the connection is closed: STORE_UNREACHABLE.
  static absl::StatusOr<std::unique_ptr<PgDatabase>> Connect(const PgTarget& target, absl::Duration timeout);
  // Like Connect, but connects and checks at the first statement.
  static std::unique_ptr<PgDatabase> Unconnected(const PgTarget& target, absl::Duration timeout);
  ~PgDatabase() override;

  Dialect dialect() const override { return Dialect::kPostgres; }
  absl::Status Execute(const std::string& sql) override;
  Statement Prepare(std::string_view sql) override;
  int64_t changes() const override { return changes_; }
  absl::Status Begin() override;
  absl::Status Commit() override;
  void Rollback() override;

  // Sets the query that begins every further transaction. It locks the rows that it reads; a transaction fails with
  // FAILED_PRECONDITION (STORE_SUPERSEDED) if it returns no row.
  void SetFence(std::string query) { fence_ = std::move(query); }
  // The identity of the server and the database: it changes after a copy, a restore or the promotion of a replica.
  // Empty before the first connection.
  const std::string& origin() const { return origin_; }
  // From now on a connection to another origin fails: FAILED_PRECONDITION (STORE_SUPERSEDED).
  void ExpectOrigin(std::string origin) { expected_origin_ = std::move(origin); }

 private:
  friend class PgCursor;
  struct Parameter {
    uint32_t type = 0;
    bool null = false;
    bool binary = false;
    std::string value;
  };
  using Result = std::unique_ptr<pg_result, void (*)(pg_result*)>;

  PgDatabase(PgTarget target, absl::Duration timeout);

  absl::Status Open();
  // Sets the session up, and reads the server's properties.
  absl::Status CheckServer();
  absl::StatusOr<std::string> AskText(const std::string& sql);
  bool Connected() const;
  // Returns the answer to the statements that `send` sends: the last of several, or the first error. Empty if sending
  // failed. If the answer did not come in time, it is empty and the connection is closed.
  Result Ask(const std::function<int()>& send);
  Result Ask(const std::string& sql);
  // Returns when the answer has come or the connection is lost; false if neither happened in time.
  bool AwaitAnswer();
  // If the connection was lost outside a transaction, connects again and repeats `ask`.
  absl::StatusOr<Result> Retrying(std::string_view doing, const std::function<Result()>& ask);
  absl::StatusOr<Result> Judge(std::string_view doing, Result result);
  absl::StatusOr<Result> Run(const std::string& sql, const std::vector<Parameter>& parameters);
  absl::Status ErrorOf(std::string_view doing, const pg_result* result) const;

  const PgTarget target_;
  const absl::Duration timeout_;
  const absl::Duration patience_;  // the wait for a server that does not answer
  pg_conn* connection_ = nullptr;
  std::unordered_map<std::string, std::string> statements_;  // by SQL: the name it has in this connection
  std::string fence_;
  std::string origin_;
  std::string expected_origin_;  // empty: any
  bool in_transaction_ = false;
  int64_t changes_ = 0;
};

// Returns the error of a SQLSTATE, as store.h names them.
absl::Status PgError(std::string_view sqlstate, std::string_view doing, std::string_view message);

// Replaces "?" with "$1", "$2", …, except in quotes.
std::string NumberParameters(std::string_view sql);

}  // namespace atl::store
