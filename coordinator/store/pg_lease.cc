#include "coordinator/store/pg_lease.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

// Microseconds of the server's clock.
constexpr std::string_view kServerNow = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT)";
// The advisory lock under which the row is made: an arbitrary number, the same in every coordinator.
constexpr int64_t kMakingLock = 0x41746f6c6c;

absl::Status Superseded() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_SUPERSEDED",
                   "another coordinator has taken the lease of the store");
}

}  // namespace

bool MayTake(const LeaseState& state, const std::string& holder) {
  return state.holder.empty() || state.expired || state.holder == holder;
}

TakenLease Judge(const LeaseState& state, const std::string& holder, const std::string& origin) {
  TakenLease taken;
  taken.promoted = !state.settled || (!state.holder.empty() && state.holder != holder);
  taken.moved = !state.origin.empty() && state.origin != origin;
  return taken;
}

absl::Status MakeLease(PgDatabase& database) {
  ATOLL_RETURN_IF_ERROR(database.Begin());
  // Two that make the same table at once are an error of one of them, without a lock.
  absl::Status status = database.Execute(fmt::format(
      "SELECT pg_advisory_xact_lock({}); CREATE TABLE IF NOT EXISTS coordinator_lease (id BIGINT PRIMARY KEY CHECK "
      "(id = 1), holder TEXT NOT NULL, fencing BIGINT NOT NULL, expires BIGINT NOT NULL, settled BIGINT NOT NULL, "
      "origin TEXT NOT NULL); INSERT INTO coordinator_lease VALUES (1, '', 0, 0, 1, '') ON CONFLICT DO NOTHING",
      kMakingLock));
  if (status.ok()) status = database.Commit();
  if (!status.ok()) database.Rollback();
  return status;
}

absl::StatusOr<LeaseState> ReadLease(PgDatabase& database) {
  Statement row = database.Prepare(
      fmt::format("SELECT holder, CAST(expires < {} AS INTEGER), settled, origin FROM coordinator_lease", kServerNow));
  ATOLL_ASSIGN_OR_RETURN(const bool found, row.Step());
  if (!found) return MakeError(absl::StatusCode::kDataLoss, "STORE_CORRUPT", "table coordinator_lease has no row");
  LeaseState state;
  state.holder = row.Text();
  state.expired = row.Int() != 0;
  state.settled = row.Int() != 0;
  state.origin = row.Text();
  return state;
}

absl::StatusOr<std::optional<TakenLease>> TakeLease(PgDatabase& database, const std::string& holder,
                                                    absl::Duration duration) {
  // Without the lock first: who only looks must not hold up who writes.
  ATOLL_ASSIGN_OR_RETURN(const LeaseState seen, ReadLease(database));
  if (!MayTake(seen, holder)) return std::optional<TakenLease>();
  ATOLL_RETURN_IF_ERROR(database.Begin());
  const auto take = [&]() -> absl::StatusOr<std::optional<TakenLease>> {
    ATOLL_RETURN_IF_ERROR(database.Execute("SELECT 1 FROM coordinator_lease FOR UPDATE"));
    ATOLL_ASSIGN_OR_RETURN(const LeaseState state, ReadLease(database));
    if (!MayTake(state, holder)) return std::optional<TakenLease>();
    TakenLease taken = Judge(state, holder, database.origin());
    Statement update = database.Prepare(
        fmt::format("UPDATE coordinator_lease SET holder = ?, fencing = fencing + 1, expires = {} + ?, settled = ? "
                    "RETURNING fencing",
                    kServerNow));
    update.Bind(holder).Bind(absl::ToInt64Microseconds(duration)).Bind(int64_t{!taken.promoted && !taken.moved});
    ATOLL_RETURN_IF_ERROR(update.Step().status());
    taken.fencing = update.Int();
    return std::optional<TakenLease>(taken);
  };
  absl::StatusOr<std::optional<TakenLease>> taken = take();
  absl::Status status = taken.status();
  if (status.ok() && taken->has_value()) {
    status = database.Commit();
  } else {
    database.Rollback();
  }
  if (!status.ok()) return status;
  return taken;
}

std::string FenceQuery(int64_t fencing) {
  return fmt::format("SELECT 1 FROM coordinator_lease WHERE fencing = {} FOR KEY SHARE", fencing);
}

absl::Status SettleLease(PgDatabase& database) {
  return database.Prepare("UPDATE coordinator_lease SET settled = 1, origin = ?").Bind(database.origin()).Run();
}

absl::Status ReleaseLease(PgDatabase& database, int64_t fencing) {
  return database.Prepare("UPDATE coordinator_lease SET holder = '' WHERE fencing = ?").Bind(fencing).Run();
}

LeaseRenewal::LeaseRenewal(std::unique_ptr<PgDatabase> database, int64_t fencing, absl::Duration duration,
                           std::function<void(const absl::Status&)> on_lost)
    : database_(std::move(database)), fencing_(fencing), duration_(duration), on_lost_(std::move(on_lost)) {
  thread_ = std::thread([this] { Run(); });
}

LeaseRenewal::~LeaseRenewal() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status LeaseRenewal::Renew() {
  Statement update =
      database_->Prepare(fmt::format("UPDATE coordinator_lease SET expires = {} + ? WHERE fencing = ?", kServerNow));
  ATOLL_RETURN_IF_ERROR(update.Bind(absl::ToInt64Microseconds(duration_)).Bind(fencing_).Run());
  return database_->changes() == 1 ? absl::OkStatus() : Superseded();
}

void LeaseRenewal::Run() {
  Clock& clock = *Clock::Real();
  absl::Duration renewed = clock.Monotonic();
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), duration_ / 5)) return;
    }
    const absl::Duration start = clock.Monotonic();
    const absl::Status status = Renew();
    if (status.ok()) {
      renewed = start;
      continue;
    }
    const bool superseded = ErrorReason(status) == "STORE_SUPERSEDED";
    if (!superseded && clock.Monotonic() - renewed < duration_) continue;
    on_lost_(superseded ? status
                        : MakeError(absl::StatusCode::kUnavailable, "STORE_UNREACHABLE",
                                    fmt::format("the lease of the store could not be renewed for {}: {}",
                                                absl::FormatDuration(duration_), std::string(status.message()))));
    return;
  }
}

}  // namespace atl::store
