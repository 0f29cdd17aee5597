#include "coordinator/store/pg_store.h"

#include <optional>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/store/migrations.h"
#include "fmt/format.h"

namespace atl::store {
namespace {

absl::Status InUse(const std::string& name, const std::string& holder) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STORE_IN_USE",
                   fmt::format("store {} belongs to the coordinator {}", name, holder));
}

absl::StatusOr<TakenLease> AwaitLease(PgDatabase& database, const std::string& name, const PgStoreOptions& options) {
  while (true) {
    // Each time: an active coordinator of a newer build may have migrated meanwhile.
    absl::Status status = CheckNotNewer(database);
    absl::StatusOr<std::optional<TakenLease>> taken = std::optional<TakenLease>();
    if (status.ok()) {
      taken = TakeLease(database, options.holder, options.lease_duration);
      status = taken.status();
    }
    if (status.ok() && taken->has_value()) return **taken;
    // While the database fails over, a replica answers until it is promoted.
    const bool away = absl::IsUnavailable(status) || ErrorReason(status) == "STORE_READ_ONLY";
    if (!status.ok() && (!away || !options.keep_waiting)) return status;
    std::string holder;
    if (status.ok()) {
      const absl::StatusOr<LeaseState> state = ReadLease(database);
      if (state.ok()) holder = state->holder;
    }
    if (!options.keep_waiting) return InUse(name, holder);
    if (!options.keep_waiting(holder)) {
      return MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_STOPPING", "stopped while it waited for the store");
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PgStore>> PgStore::Open(PgStoreOptions options) {
  ATOLL_ASSIGN_OR_RETURN(const PgTarget target, ParsePgUri(options.uri));
  ATOLL_ASSIGN_OR_RETURN(auto database, PgDatabase::Connect(target, options.lease_duration));
  // Before anything is made: the database may be another program's.
  absl::Status status = CheckNotNewer(*database);
  if (status.ok()) status = MakeLease(*database);
  if (!status.ok()) return WithContext(status, fmt::format("store {}", target.name));
  ATOLL_ASSIGN_OR_RETURN(const TakenLease taken, AwaitLease(*database, target.name, options));
  auto renewing = PgDatabase::Unconnected(target, options.lease_duration);
  for (PgDatabase* one : {database.get(), renewing.get()}) one->ExpectOrigin(database->origin());

  std::unique_ptr<PgStore> store(new PgStore(target, options.on_lost));
  // Already now: migrating may take longer than the lease lasts.
  store->renewal_ =
      std::make_unique<LeaseRenewal>(std::move(renewing), taken.fencing, options.lease_duration,
                                     [name = target.name, on_lost = options.on_lost](const absl::Status& why) {
                                       if (on_lost) on_lost(WithContext(why, fmt::format("store {}", name)));
                                     });
  status = store->Take(std::move(database), taken);
  if (!status.ok()) return WithContext(status, fmt::format("store {}", target.name));
  return store;
}

absl::Status PgStore::Take(std::unique_ptr<PgDatabase> database, const TakenLease& taken) {
  pg_ = database.get();
  fencing_ = taken.fencing;
  promoted_ = taken.promoted;
  pg_->SetFence(FenceQuery(fencing_));
  ATOLL_RETURN_IF_ERROR(Load(std::move(database)));
  if (!taken.moved) {
    // A database that is new says now what it is; a promoted one stays unsettled until it has its epoch.
    if (promoted_) return absl::OkStatus();
    return Write("settle_lease", [&](Transaction&) { return SettleLease(*pg_); });
  }
  return restored() ? absl::OkStatus() : MarkRestored();
}

PgStore::~PgStore() {
  renewal_.reset();
  // Only a courtesy to the next one; who lost the lease changes no row.
  if (pg_ != nullptr) (void)ReleaseLease(*pg_, fencing_);
}

absl::Status PgStore::AdoptEpoch(int64_t epoch) {
  ATOLL_RETURN_IF_ERROR(Store::AdoptEpoch(epoch));
  promoted_ = false;
  // A process that dies before this takes one more epoch than it must.
  return Write("settle_lease", [&](Transaction&) { return SettleLease(*pg_); });
}

}  // namespace atl::store
