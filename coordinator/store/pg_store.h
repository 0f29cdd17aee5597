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
  // This coordinator's name. Another process may bear it only once this one is gone: it takes the lease at once.
  std::string holder;
  // How long the lease lives without its holder. Renewed five times as often.
  absl::Duration lease_duration = absl::Seconds(10);
  // Called also when the lease could not be renewed in time.
  OnStoreLost on_lost;
  // Called again and again while another has the lease (`holder`), or the server that was there is away or a replica
  // (empty), and waits for a moment; false gives up. Empty: does not wait.
  std::function<bool(const std::string& holder)> keep_waiting;
};

class PgStore : public Store {
 public:
  // Connects, at once or not at all; waits for the lease, takes it and migrates. Whoever waits may see the server
  // replaced by another; whoever has the lease may not. UNAVAILABLE (COORDINATOR_STOPPING) when keep_waiting gave up,
  // FAILED_PRECONDITION (STORE_IN_USE) when there is none; else as PgDatabase::Connect, Store and Migrate.
  static absl::StatusOr<std::unique_ptr<PgStore>> Open(PgStoreOptions options);
  // Lets go of the lease, unless it was lost.
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
