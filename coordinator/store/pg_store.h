// Store in a PostgreSQL database, for several coordinators of which one is active (pg_lease.h).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "coordinator/store/pg_lease.h"
#include "coordinator/store/store.h"

namespace atl::store {

struct PgStoreOptions {
  // postgres://…, as ParsePgUri.
  std::string uri;
  // This coordinator's name. Another process may use it only after this one has ended: it takes the lease at once.
  std::string holder;
  // How long the lease lives without its holder. It is renewed five times as often.
  absl::Duration lease_duration = absl::Seconds(10);
  // Also called when the lease could not be renewed in time.
  OnStoreLost on_lost;
  // Called repeatedly while another coordinator has the lease (`holder`), or while the earlier server is unreachable or
  // a replica (empty); waits for a moment, and returns false to give up. Empty: does not wait.
  std::function<bool(const std::string& holder)> keep_waiting;
};

class PgStore : public Store {
 public:
  // Connects without a retry; waits for the lease, takes it and migrates. While a coordinator waits, the server may be
  // replaced by another; while it holds the lease, it may not. UNAVAILABLE (COORDINATOR_STOPPING) when keep_waiting
  // gave up, FAILED_PRECONDITION (STORE_IN_USE) without keep_waiting; other errors as PgDatabase::Connect, Store and
  // Migrate.
  static absl::StatusOr<std::unique_ptr<PgStore>> Open(PgStoreOptions options);
  // Releases the lease, unless it was lost.
  ~PgStore() override;

  bool promoted() const override { return promoted_; }
  absl::Status AdoptEpoch(int64_t epoch) override;

 private:
  explicit PgStore(const PgTarget& target, OnStoreLost on_lost) : Store(target.name, std::move(on_lost)) {}

  absl::Status Take(std::unique_ptr<PgDatabase> database, const TakenLease& taken);

  PgDatabase* pg_ = nullptr;  // the database of the store
  int64_t fencing_ = 0;
  bool promoted_ = false;
  std::unique_ptr<LeaseRenewal> renewal_;
};

}  // namespace atl::store
