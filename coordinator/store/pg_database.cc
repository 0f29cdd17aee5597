#include "coordinator/store/pg_database.h"

#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

// Object ids of built-in types; they are the same in every server.
constexpr uint32_t kBytea = 17;
constexpr uint32_t kInt8 = 20;
constexpr uint32_t kText = 25;

constexpr int kOldestServer = 130'000;

// A machine that is busy may answer so late.
constexpr absl::Duration kLeastPatience = absl::Seconds(2);
// TLS may hold bytes of which the socket says nothing any more: they are asked for so often.
constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

// libpq ends lines, and says several things in several of them.
std::string OneLine(const char* text) {
  return absl::StrReplaceAll(absl::StripAsciiWhitespace(text == nullptr ? "" : text), {{"\n", "; "}, {"\t", ""}});
}

std::string Milliseconds(absl::Duration duration) {
  return std::to_string(absl::ToInt64Milliseconds(duration));
}

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

}  // namespace

bool IsPgUri(std::string_view store) {
  return StartsWith(store, "postgres://") || StartsWith(store, "postgresql://");
}

absl::StatusOr<PgTarget> ParsePgUri(const std::string& uri) {
  char* error = nullptr;
  const std::unique_ptr<PQconninfoOption, void (*)(PQconninfoOption*)> options(PQconninfoParse(uri.c_str(), &error),
                                                                               PQconninfoFree);
  const std::unique_ptr<char, void (*)(void*)> message(error, PQfreemem);
  if (options == nullptr) {
    // libpq's message repeats parts of the text, and a password may be among them.
    return MakeError(absl::StatusCode::kInvalidArgument, "STORE_URI_INVALID",
                     "expected a store such as postgres://user@host:5432/database, found a URI that libpq cannot read");
  }
  PgTarget target;
  std::string user, host, port, database;
  for (const PQconninfoOption* option = options.get(); option->keyword != nullptr; ++option) {
    if (option->val == nullptr) continue;
    const std::string_view key = option->keyword;
    if (key == "password" || key == "sslpassword") {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "STORE_PASSWORD_IN_URI",
          fmt::format("the store's URI has a {}, which everybody on this machine can see: put it into a "
                      "file that only you may read, named by PGPASSFILE (host:port:database:user:password) "
                      "or by a service (PGSERVICEFILE), and leave it out of the URI",
                      key));
    }
    if (key == "user") user = std::string(option->val) + "@";
    if (key == "host") host = option->val;
    if (key == "port") port = std::string(":") + option->val;
    if (key == "dbname") database = std::string("/") + option->val;
    target.parameters.emplace_back(key, option->val);
  }
  target.name = fmt::format("postgres://{}{}{}{}", user, host, port, database);
  return target;
}

absl::Status PgError(std::string_view sqlstate, std::string_view doing, std::string_view message) {
  const auto error = [&](absl::StatusCode code, std::string_view reason) {
    return MakeError(code, reason, fmt::format("{}: {} ({})", doing, message, sqlstate));
  };
  const std::string_view group = sqlstate.substr(0, 2);
  if (sqlstate == "53100") return error(absl::StatusCode::kUnavailable, "STORE_FULL");
  if (sqlstate == "58030") return error(absl::StatusCode::kUnavailable, "STORE_IO");
  if (group == "08" || group == "53" || (group == "57" && sqlstate != "57014")) {
    return error(absl::StatusCode::kUnavailable, "STORE_UNREACHABLE");
  }
  if (sqlstate == "57014" || sqlstate == "55P03" || group == "40") {
    return error(absl::StatusCode::kUnavailable, "STORE_LOCKED");
  }
  if (sqlstate == "25006" || sqlstate == "42501") {
    return error(absl::StatusCode::kFailedPrecondition, "STORE_READ_ONLY");
  }
  if (group == "28" || group == "3D" || group == "3F") {
    return error(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN");
  }
  if (group == "XX" && sqlstate != "XX000") return error(absl::StatusCode::kDataLoss, "STORE_CORRUPT");
  // Text of a caller that no PostgreSQL database can keep.
  if (sqlstate == "22021" || sqlstate == "22P05") return error(absl::StatusCode::kInvalidArgument, "TEXT_NOT_STORABLE");
  return error(absl::StatusCode::kInternal, "STORE_ERROR");
}

std::string NumberParameters(std::string_view sql) {
  std::string numbered;
  int number = 0;
  bool quoted = false;
  for (const char c : sql) {
    if (c == '\'') quoted = !quoted;
    if (c == '?' && !quoted) {
      numbered += fmt::format("${}", ++number);
    } else {
      numbered += c;
    }
  }
  return numbered;
}

class PgCursor : public Cursor {
 public:
  PgCursor(PgDatabase* database, std::string sql)
      : database_(*database), sql_(std::move(sql)), result_(nullptr, PQclear) {}

  void BindInt(int64_t value) override { parameters_.push_back({kInt8, false, false, std::to_string(value)}); }
  // As bytes with their length: as text it would end at a zero.
  void BindText(std::string_view text) override { parameters_.push_back({kText, false, true, std::string(text)}); }
  void BindBlob(std::string_view bytes) override { parameters_.push_back({kBytea, false, true, std::string(bytes)}); }
  // Only times are null.
  void BindNull() override { parameters_.push_back({kInt8, true, false, ""}); }

  absl::StatusOr<bool> Step() override {
    if (result_ == nullptr) {
      ATOLL_ASSIGN_OR_RETURN(result_, database_.Run(sql_, parameters_));
    } else {
      ++row_;
    }
    return row_ < PQntuples(result_.get());
  }

  bool IsNull(int column) override { return PQgetisnull(result_.get(), row_, column) != 0; }
  int64_t Int(int column) override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(PQgetvalue(result_.get(), row_, column));
    const int size = PQgetlength(result_.get(), row_, column);
    // Big-endian, of two, four or eight bytes.
    uint64_t value = size > 0 && (bytes[0] & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (int i = 0; i < size; ++i) value = (value << 8) | bytes[i];
    return static_cast<int64_t>(value);
  }
  std::string Text(int column) override {
    return {PQgetvalue(result_.get(), row_, column), static_cast<size_t>(PQgetlength(result_.get(), row_, column))};
  }

 private:
  PgDatabase& database_;
  const std::string sql_;
  std::vector<PgDatabase::Parameter> parameters_;
  PgDatabase::Result result_;
  int row_ = 0;
};

absl::StatusOr<std::unique_ptr<PgDatabase>> PgDatabase::Connect(const PgTarget& target, absl::Duration timeout) {
  std::unique_ptr<PgDatabase> database = Unconnected(target, timeout);
  ATOLL_RETURN_IF_ERROR(database->Open());
  return database;
}

std::unique_ptr<PgDatabase> PgDatabase::Unconnected(const PgTarget& target, absl::Duration timeout) {
  return std::unique_ptr<PgDatabase>(new PgDatabase(target, timeout));
}

PgDatabase::PgDatabase(PgTarget target, absl::Duration timeout)
    : target_(std::move(target)), timeout_(timeout), patience_(std::max(2 * timeout, kLeastPatience)) {}

PgDatabase::~PgDatabase() {
  PQfinish(connection_);
}

bool PgDatabase::Connected() const {
  return connection_ != nullptr && PQstatus(connection_) == CONNECTION_OK;
}

absl::Status PgDatabase::Open() {
  // Parameters of the URI come later and override these.
  std::vector<std::pair<std::string, std::string>> parameters = {
      {"fallback_application_name", "atoll-coordinator"},
      {"client_encoding", "UTF8"},
      {"connect_timeout", "2"},
      {"keepalives_idle", "5"},
      {"keepalives_interval", "2"},
      {"keepalives_count", "3"},
      {"tcp_user_timeout", Milliseconds(timeout_)},
  };
  parameters.insert(parameters.end(), target_.parameters.begin(), target_.parameters.end());
  std::vector<const char*> keys;
  std::vector<const char*> values;
  for (const auto& [key, value] : parameters) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  keys.push_back(nullptr);
  values.push_back(nullptr);
  PQfinish(connection_);
  statements_.clear();
  in_transaction_ = false;
  connection_ = PQconnectdbParams(keys.data(), values.data(), /*expand_dbname=*/0);
  // Not blocking: else sending, and closing too, would wait for a server that reads nothing.
  if (!Connected() || PQsetnonblocking(connection_, 1) != 0) {
    const std::string message = connection_ == nullptr ? "no memory" : OneLine(PQerrorMessage(connection_));
    const bool password = connection_ != nullptr && PQconnectionNeedsPassword(connection_) != 0;
    PQfinish(std::exchange(connection_, nullptr));
    return MakeError(absl::StatusCode::kUnavailable, "STORE_UNREACHABLE",
                     fmt::format("store {}: {}{}", target_.name, message,
                                 password ? "; give the password in a file named by PGPASSFILE" : ""));
  }
  PQsetNoticeProcessor(
      connection_, [](void*, const char*) {}, nullptr);
  absl::Status status = CheckServer();
  // A server that failed the check gets no statements: the next call connects and checks again.
  if (!status.ok()) PQfinish(std::exchange(connection_, nullptr));
  return WithContext(status, fmt::format("store {}", target_.name));
}

PgDatabase::Result PgDatabase::Ask(const std::function<int()>& send) {
  Result last(nullptr, PQclear);
  if (!Connected() || send() == 0) return last;
  while (Connected()) {
    if (!AwaitAnswer()) {
      PQfinish(std::exchange(connection_, nullptr));
      return {nullptr, PQclear};
    }
    Result next(PQgetResult(connection_), PQclear);
    if (next == nullptr) break;
    const bool failed = last != nullptr && PQresultStatus(last.get()) == PGRES_FATAL_ERROR;
    if (!failed) last = std::move(next);
  }
  return last;
}

PgDatabase::Result PgDatabase::Ask(const std::string& sql) {
  return Ask([&] { return PQsendQuery(connection_, sql.c_str()); });
}

bool PgDatabase::AwaitAnswer() {
  Clock& clock = *Clock::Real();
  const absl::Duration deadline = clock.Monotonic() + patience_;
  while (true) {
    const bool unsent = PQflush(connection_) == 1;
    if (!unsent && PQisBusy(connection_) == 0) return true;
    if (clock.Monotonic() >= deadline) return false;
    pollfd answer = {PQsocket(connection_), static_cast<int16_t>(unsent ? POLLIN | POLLOUT : POLLIN), 0};
    // Its errors are found by reading.
    (void)poll(&answer, 1, static_cast<int>(absl::ToInt64Milliseconds(kLookInterval)));
    // Still connected after an error, it has no memory for the answer.
    if (PQconsumeInput(connection_) == 0) return !Connected();
  }
}

absl::StatusOr<std::string> PgDatabase::AskText(const std::string& sql) {
  ATOLL_ASSIGN_OR_RETURN(const Result result, Judge(sql, Ask(sql)));
  if (PQntuples(result.get()) == 0) return std::string();
  return std::string(PQgetvalue(result.get(), 0, 0));
}

absl::Status PgDatabase::CheckServer() {
  if (const int version = PQserverVersion(connection_); version < kOldestServer) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN",
                     fmt::format("expected PostgreSQL 13 or newer, found {}", version / 10'000));
  }
  const std::string limit = Milliseconds(timeout_);
  ATOLL_RETURN_IF_ERROR(AskText(fmt::format("SET statement_timeout = {0}; SET lock_timeout = {0}; "
                                            "SET idle_in_transaction_session_timeout = {0}; "
                                            "SET default_transaction_isolation = 'read committed'",
                                            limit))
                            .status());
  ATOLL_ASSIGN_OR_RETURN(const std::string recovering, AskText("SELECT pg_is_in_recovery()"));
  if (recovering == "t") {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "STORE_READ_ONLY",
        "the server is a replica; name the primary, or several hosts with target_session_attrs=read-write");
  }
  for (const char* setting : {"synchronous_commit", "fsync"}) {
    ATOLL_ASSIGN_OR_RETURN(const std::string value, AskText(fmt::format("SHOW {}", setting)));
    // "local" and "remote_write" do not wait until synchronous replicas have it on their disks.
    if (value != "on" && value != "remote_apply") {
      return MakeError(
          absl::StatusCode::kFailedPrecondition, "STORE_NOT_DURABLE",
          fmt::format("{} is {}: the server would acknowledge what a crash or a failover loses; turn it on "
                      "for this database or role",
                      setting, value));
    }
    // A session's setting survives a server reload. `fsync` is a server setting, so it cannot be set here.
    if (std::string_view(setting) == "fsync") continue;
    ATOLL_RETURN_IF_ERROR(AskText(fmt::format("SET {} = {}", setting, value)).status());
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string encoding, AskText("SHOW server_encoding"));
  if (encoding != "UTF8") {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_CANNOT_OPEN",
                     fmt::format("expected a database with encoding UTF8, found {}", encoding));
  }
  ATOLL_ASSIGN_OR_RETURN(
      std::string origin,
      AskText("SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || (SELECT oid FROM pg_database WHERE "
              "datname = current_database()) || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"));
  if (!expected_origin_.empty() && origin != expected_origin_) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_SUPERSEDED",
                     fmt::format("the server is not the one of before (expected {}, found {}): a replica was promoted "
                                 "or a copy took its place",
                                 expected_origin_, origin));
  }
  origin_ = std::move(origin);
  return absl::OkStatus();
}

absl::Status PgDatabase::ErrorOf(std::string_view doing, const pg_result* result) const {
  const std::string text = fmt::format("store {}: {}", target_.name, doing.substr(0, 60));
  if (connection_ == nullptr) {
    return MakeError(absl::StatusCode::kUnavailable, "STORE_UNREACHABLE",
                     fmt::format("{}: the server did not answer for {}", text, absl::FormatDuration(patience_)));
  }
  const std::string message = OneLine(result != nullptr ? PQresultErrorMessage(result) : PQerrorMessage(connection_));
  const char* state = result == nullptr ? nullptr : PQresultErrorField(result, PG_DIAG_SQLSTATE);
  if (!Connected()) {
    return MakeError(absl::StatusCode::kUnavailable, "STORE_UNREACHABLE",
                     fmt::format("{}: {}", text, message.empty() ? "the connection is gone" : message));
  }
  return PgError(state == nullptr ? "" : state, text, message);
}

absl::StatusOr<PgDatabase::Result> PgDatabase::Judge(std::string_view doing, Result result) {
  const ExecStatusType status = PQresultStatus(result.get());
  if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK) return ErrorOf(doing, result.get());
  const std::string_view count = PQcmdTuples(result.get());
  changes_ = count.empty() ? 0 : std::strtoll(count.data(), nullptr, 10);
  return result;
}

absl::StatusOr<PgDatabase::Result> PgDatabase::Retrying(std::string_view doing, const std::function<Result()>& ask) {
  if (!Connected() && !in_transaction_) ATOLL_RETURN_IF_ERROR(Open());
  absl::StatusOr<Result> result = Judge(doing, ask());
  // Only now may it be seen that the server went away meanwhile. What is asked outside a transaction may be asked
  // again, but not of a server that did not answer: the caller has waited long enough.
  if (result.ok() || Connected() || in_transaction_ || connection_ == nullptr) return result;
  ATOLL_RETURN_IF_ERROR(Open());
  return Judge(doing, ask());
}

absl::Status PgDatabase::Execute(const std::string& sql) {
  return Retrying(sql, [&] { return Ask(sql); }).status();
}

Statement PgDatabase::Prepare(std::string_view sql) {
  return Statement(std::make_unique<PgCursor>(this, std::string(sql)));
}

absl::StatusOr<PgDatabase::Result> PgDatabase::Run(const std::string& sql, const std::vector<Parameter>& parameters) {
  std::vector<Oid> types;
  std::vector<const char*> values;
  std::vector<int> lengths;
  std::vector<int> formats;
  for (const Parameter& parameter : parameters) {
    types.push_back(parameter.type);
    values.push_back(parameter.null ? nullptr : parameter.value.c_str());
    lengths.push_back(static_cast<int>(parameter.value.size()));
    formats.push_back(parameter.binary ? 1 : 0);
  }
  const int count = static_cast<int>(parameters.size());
  return Retrying(sql, [&]() -> Result {
    auto it = statements_.find(sql);
    if (it == statements_.end()) {
      const std::string name = fmt::format("s{}", statements_.size());
      const std::string numbered = NumberParameters(sql);
      const auto prepare = [&] {
        return PQsendPrepare(connection_, name.c_str(), numbered.c_str(), count, types.data());
      };
      Result prepared = Ask(prepare);
      if (PQresultStatus(prepared.get()) != PGRES_COMMAND_OK) return prepared;
      it = statements_.emplace(sql, name).first;
    }
    const auto execute = [&] {
      return PQsendQueryPrepared(connection_, it->second.c_str(), count, values.data(), lengths.data(), formats.data(),
                                 /*resultFormat=*/1);
    };
    return Ask(execute);
  });
}

absl::Status PgDatabase::Begin() {
  if (in_transaction_) {
    return MakeError(absl::StatusCode::kInternal, "STORE_ERROR", "a transaction inside a transaction");
  }
  const std::string begin = fence_.empty() ? "BEGIN" : "BEGIN; " + fence_;
  absl::StatusOr<Result> result = Retrying("BEGIN", [&] { return Ask(begin); });
  in_transaction_ = true;
  if (result.ok() && (fence_.empty() || PQntuples(result->get()) == 1)) return absl::OkStatus();
  Rollback();
  ATOLL_RETURN_IF_ERROR(result.status());
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_SUPERSEDED",
                   fmt::format("store {}: another coordinator has taken the lease", target_.name));
}

absl::Status PgDatabase::Commit() {
  in_transaction_ = false;
  if (!Connected()) return ErrorOf("COMMIT", nullptr);
  const absl::StatusOr<Result> result = Judge("COMMIT", Ask("COMMIT"));
  if (!result.ok()) return Connected() ? result.status() : OutcomeUnknown(result.status());
  if (std::strcmp(PQcmdStatus(result->get()), "COMMIT") == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInternal, "STORE_ERROR",
                   fmt::format("store {}: a transaction that had failed was to be committed", target_.name));
}

void PgDatabase::Rollback() {
  in_transaction_ = false;
  if (Connected()) (void)Ask("ROLLBACK");
}

}  // namespace atl::store
