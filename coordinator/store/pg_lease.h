// Decides which of several coordinators has a PostgreSQL store: one row, one holder, and a fencing number that grows
// with every holder.
//
// Every transaction that writes reads the row, locked, and fails if the number has changed. So a coordinator that takes
// the row over waits for a running transaction; after that the old holder can write nothing, however long it slept.
// Times are the server's, so that the clocks of coordinators do not matter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/store/pg_database.h"

namespace atl::store {

struct LeaseState {
  std::string holder;  // empty: it was released
  bool expired = false;
  bool settled = true;  // the last holder has an epoch of its own or needed none
  std::string origin;   // of the database that the row was written in; empty at first
};

struct TakenLease {
  int64_t fencing = 0;
  // The previous holder did not release the lease, or no epoch was taken since such a holder.
  bool promoted = false;
  // The database is a copy, or the new server may lack the newest transactions.
  bool moved = false;
};

// Whether `holder` may take the lease now. It may take its own at once: the earlier process of that name has ended.
bool MayTake(const LeaseState& state, const std::string& holder);
// Compares the lease before it is taken with the new holder and the database.
TakenLease Judge(const LeaseState& state, const std::string& holder, const std::string& origin);

// Makes the row if it does not exist.
absl::Status MakeLease(PgDatabase& database);
absl::StatusOr<LeaseState> ReadLease(PgDatabase& database);
// Returns unset while another coordinator has the lease.
absl::StatusOr<std::optional<TakenLease>> TakeLease(PgDatabase& database, const std::string& holder,
                                                    absl::Duration duration);
// Returns the query for PgDatabase::SetFence. Its lock keeps others from taking the lease, and lets it be renewed.
std::string FenceQuery(int64_t fencing);
// Call within a transaction: records that the holder has its epoch, and that the row belongs to this database.
absl::Status SettleLease(PgDatabase& database);
// Releases the lease, so that the next holder need not wait.
absl::Status ReleaseLease(PgDatabase& database, int64_t fencing);

// Renews the lease on its own thread, which the destructor joins.
class LeaseRenewal {
 public:
  // Renews five times per `duration`. Calls `on_lost` once, on its thread, when another coordinator has the lease, or
  // with UNAVAILABLE (STORE_UNREACHABLE) when it could not be renewed for a whole `duration`. If a server does not
  // answer, detection and the destructor wait until the database's timeout.
  LeaseRenewal(std::unique_ptr<PgDatabase> database, int64_t fencing, absl::Duration duration,
               std::function<void(const absl::Status&)> on_lost);
  ~LeaseRenewal();

 private:
  void Run();
  absl::Status Renew();

  const std::unique_ptr<PgDatabase> database_;
  const int64_t fencing_;
  const absl::Duration duration_;
  const std::function<void(const absl::Status&)> on_lost_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::store
