#include "coordinator/leases/lease.h"

#include <algorithm>

#include "common/base/errors.h"
#include "coordinator/leases/attempt_secret.h"
#include "fmt/format.h"

namespace atl::leases {

void LeaseTable::Grant(Lease lease, absl::Duration now) {
  End(lease.task_id);
  lease.expires = now + options_.lease_duration;
  task_by_island_[lease.island_id] = lease.task_id;
  std::string task_id = lease.task_id;
  leases_.insert_or_assign(std::move(task_id), std::move(lease));
}

void LeaseTable::Restore(Lease lease, absl::Duration now) {
  std::string task_id = lease.task_id;
  Grant(std::move(lease), now);
  leases_.find(task_id)->second.expires = now + std::max(options_.restart_grace, options_.lease_duration);
}

void LeaseTable::End(std::string_view task_id) {
  const auto it = leases_.find(task_id);
  if (it == leases_.end()) return;
  const auto held = task_by_island_.find(it->second.island_id);
  if (held != task_by_island_.end() && held->second == task_id) task_by_island_.erase(held);
  leases_.erase(it);
}

void LeaseTable::ReplaceSecret(std::string_view task_id, std::string secret) {
  const auto it = leases_.find(task_id);
  if (it == leases_.end()) return;
  it->second.secret_sha256 = SecretHash(secret);
  it->second.secret = std::move(secret);
}

const Lease* LeaseTable::Find(std::string_view task_id) const {
  const auto it = leases_.find(task_id);
  return it == leases_.end() ? nullptr : &it->second;
}

const Lease* LeaseTable::HeldBy(std::string_view island_id) const {
  const auto it = task_by_island_.find(island_id);
  return it == task_by_island_.end() ? nullptr : Find(it->second);
}

bool LeaseTable::Expired(std::string_view task_id, absl::Duration now) const {
  const Lease* lease = Find(task_id);
  return lease != nullptr && lease->expires <= now;
}

absl::Duration LeaseTable::NextExpiry(absl::Duration now) const {
  absl::Duration next = absl::InfiniteDuration();
  for (const auto& [task_id, lease] : leases_) {
    if (lease.expires > now) next = std::min(next, lease.expires);
  }
  return next;
}

std::vector<Lease> LeaseTable::All() const {
  std::vector<Lease> all;
  for (const auto& [task_id, lease] : leases_) all.push_back(lease);
  return all;
}

size_t LeaseTable::CountExpired(absl::Duration now) const {
  return std::count_if(leases_.begin(), leases_.end(),
                       [now](const auto& entry) { return entry.second.expires <= now; });
}

absl::Status LeaseTable::Check(const spec::LeaseToken& token, int64_t store_epoch) const {
  if (token.store_epoch != store_epoch) {
    return StaleAttempt(token, fmt::format("the store's epoch is {}", store_epoch));
  }
  const Lease* lease = Find(token.task_id);
  if (lease == nullptr) return StaleAttempt(token, "the task has no active attempt");
  if (lease->attempt != token.attempt) {
    return StaleAttempt(token, fmt::format("the active attempt is {}", lease->attempt));
  }
  if (!IsHashOf(lease->secret_sha256, token.attempt_secret)) {
    return StaleAttempt(token, "the attempt's secret is another");
  }
  return absl::OkStatus();
}

void LeaseTable::Renew(std::string_view task_id, absl::Duration now) {
  const auto it = leases_.find(task_id);
  if (it == leases_.end()) return;
  it->second.expires = std::max(it->second.expires, now + options_.lease_duration);
}

absl::Status StaleAttempt(const spec::LeaseToken& token, std::string_view found) {
  return MakeError(absl::StatusCode::kAborted, "STALE_ATTEMPT",
                   fmt::format("attempt {} of task {} (store epoch {}) is not valid any more: {}", token.attempt,
                               token.task_id, token.store_epoch, found));
}

}  // namespace atl::leases
