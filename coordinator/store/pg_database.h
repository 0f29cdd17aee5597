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

// Whether a store is named as "postgres://…" or "postgresql://…".
bool IsPgUri(std::string_view store);

// Where a database is, as libpq's keywords and values.
struct PgTarget {
  std::string name;  // "postgres://user@host:port/database", for messages
  std::vector<std::pair<std::string, std::string>> parameters;
};

// INVALID_ARGUMENT: STORE_URI_INVALID; STORE_PASSWORD_IN_URI, because command lines are seen by everybody on a machine.
// No message repeats what may be a password.
absl::StatusOr<PgTarget> ParsePgUri(const std::string& uri);

class PgDatabase : public Database {
 public:
  // Connects, and checks that the server keeps what it acknowledges: FAILED_PRECONDITION (STORE_NOT_DURABLE,
  // STORE_CANNOT_OPEN, STORE_READ_ONLY). UNAVAILABLE (STORE_UNREACHABLE). No statement and no lock takes longer than
  // `timeout`, and the server ends a transaction that is left alone for as long. A server that does not answer for
  // twice `timeout` is given up: STORE_UNREACHABLE.
  static absl::StatusOr<std::unique_ptr<PgDatabase>> Connect(const PgTarget& target, absl::Duration timeout);
  // The same, connected and checked when it is first asked something.
  static std::unique_ptr<PgDatabase> Unconnected(const PgTarget& target, absl::Duration timeout);
  ~PgDatabase() override;

  Dialect dialect() const override { return Dialect::kPostgres; }
  absl::Status Execute(const std::string& sql) override;
  Statement Prepare(std::string_view sql) override;
  int64_t changes() const override { return changes_; }
  absl::Status Begin() override;
  absl::Status Commit() override;
  void Rollback() override;

  // From now on a transaction begins with this query, which locks what it reads; FAILED_PRECONDITION
  // (STORE_SUPERSEDED) when it answers no row.
  void SetFence(std::string query) { fence_ = std::move(query); }
  // What the server and the database are: another one after a copy, a restore or the promotion of a replica. Empty
  // before the first connection.
  const std::string& origin() const { return origin_; }
  // From now on a connection to what is of another origin fails: FAILED_PRECONDITION (STORE_SUPERSEDED).
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
  // Sets the session up, and reads what kind of server this is.
  absl::Status CheckServer();
  absl::StatusOr<std::string> AskText(const std::string& sql);
  bool Connected() const;
  // The answer to what `send` sends: the last of several, or the first error. Empty when nothing could be sent, and,
  // without the connection, when the answer did not come in time.
  Result Ask(const std::function<int()>& send);
  Result Ask(const std::string& sql);
  // Returns when the answer is there or the connection is gone; false when neither was so in time.
  bool AwaitAnswer();
  // Outside a transaction, connects again and runs `ask` again when the connection turned out to be gone.
  absl::StatusOr<Result> Retrying(std::string_view doing, const std::function<Result()>& ask);
  absl::StatusOr<Result> Judge(std::string_view doing, Result result);
  absl::StatusOr<Result> Run(const std::string& sql, const std::vector<Parameter>& parameters);
  absl::Status ErrorOf(std::string_view doing, const pg_result* result) const;

  const PgTarget target_;
  const absl::Duration timeout_;
  const absl::Duration patience_;  // with a server that does not answer
  pg_conn* connection_ = nullptr;
  std::unordered_map<std::string, std::string> statements_;  // by SQL: the name it has in this connection
  std::string fence_;
  std::string origin_;
  std::string expected_origin_;  // empty: any
  bool in_transaction_ = false;
  int64_t changes_ = 0;
};

// The error of a SQLSTATE, as store.h names them.
absl::Status PgError(std::string_view sqlstate, std::string_view doing, std::string_view message);

// "?" as "$1", "$2", …, but in quotes.
std::string NumberParameters(std::string_view sql);

}  // namespace atl::store
