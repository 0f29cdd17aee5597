// Which of several coordinators has a PostgreSQL store: one row, one holder, a number that grows with every holder.
//
// The number fences: every transaction that writes reads the row, locked, and fails when the number is another one. So
// who takes the row over waits for a transaction that is under way, and after that the old holder can write nothing,
// however long it slept. Times are the server's, so that the clocks of coordinators do not matter.
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
  std::string holder;  // empty: it was let go of
  bool expired = false;
  bool settled = true;  // the last holder has an epoch of its own or needed none
  std::string origin;   // of the database that the row was written in; empty at first
};

struct TakenLease {
  int64_t fencing = 0;
  // The holder of before did not let go, or nobody has taken an epoch since one that did not.
  bool promoted = false;
  // The database is a copy, or a server took over that may not know the newest transactions.
  bool moved = false;
};

// Whether `holder` may take the lease now. It may take its own at once: a process of that name is gone.
bool MayTake(const LeaseState& state, const std::string& holder);
// What taking it means.
TakenLease Judge(const LeaseState& state, const std::string& holder, const std::string& origin);

// Makes the row where there is none.
absl::Status MakeLease(PgDatabase& database);
absl::StatusOr<LeaseState> ReadLease(PgDatabase& database);
// Unset while another has it.
absl::StatusOr<std::optional<TakenLease>> TakeLease(PgDatabase& database, const std::string& holder,
                                                    absl::Duration duration);
// The query that PgDatabase::SetFence wants. Its lock keeps others from taking the lease, and lets it be renewed.
std::string FenceQuery(int64_t fencing);
// Within a transaction: the holder has its epoch, and the row belongs to this database.
absl::Status SettleLease(PgDatabase& database);
// Lets go, so that the next one need not wait.
absl::Status ReleaseLease(PgDatabase& database, int64_t fencing);

// Renews the lease from a thread of its own, joined by the destructor.
class LeaseRenewal {
 public:
  // Renews five times per `duration`. Calls `on_lost` once, on its thread, when another has the lease, or when it could
  // not be renewed for as long as it lasts: UNAVAILABLE (STORE_UNREACHABLE). Of a server that does not answer it is
  // known, and the destructor returns, only when the database gives it up.
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
