// Leases: the time-limited right to a task. Pure; every time is monotonic, since an arbitrary start.
//
// A lease that expired is only claimable: its attempt stays valid, and any heartbeat or commit renews it, until another
// attempt is granted. The store keeps the durable part of a lease (attempt, island, incarnation, hash of the secret).
// Its expiry is known only here, and a restart gives every live lease a grace period.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/spec/task.h"

namespace atl::leases {

struct LeaseOptions {
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration lease_duration = absl::Seconds(10);
  absl::Duration restart_grace = absl::Minutes(1);
};

struct Lease {
  std::string task_id;
  std::string job_id;
  std::string island_id;
  int64_t incarnation = 0;
  int64_t attempt = 0;
  std::string secret_sha256;  // 32 bytes
  // Empty if this process does not know it, because it was granted before a restart. Its island continues to use it.
  std::string secret;
  absl::Duration expires = absl::ZeroDuration();
};

// The active attempts, at most one per task and one per island. Not thread-safe; owned by the coordinator's core.
class LeaseTable {
 public:
  explicit LeaseTable(LeaseOptions options) : options_(options) {}

  // Adds a new lease, from `now`. Replaces the task's earlier one.
  void Grant(Lease lease, absl::Duration now);
  // Adds an active attempt found in the store at start: valid until the grace is over.
  void Restore(Lease lease, absl::Duration now);
  void End(std::string_view task_id);
  // Replaces the secret of the task's active attempt: the previous one is void.
  void ReplaceSecret(std::string_view task_id, std::string secret);

  // Returns null when the task has no active attempt.
  const Lease* Find(std::string_view task_id) const;
  // Returns the island's active lease, null when it has none. It may have expired.
  const Lease* HeldBy(std::string_view island_id) const;
  bool Expired(std::string_view task_id, absl::Duration now) const;
  // Returns the next time at which a lease expires; InfiniteDuration without one. Ignores leases that expired before
  // `now`.
  absl::Duration NextExpiry(absl::Duration now) const;
  std::vector<Lease> All() const;
  size_t size() const { return leases_.size(); }
  size_t CountExpired(absl::Duration now) const;

  // Returns OK if the token belongs to the task's active attempt, else ABORTED (STALE_ATTEMPT).
  absl::Status Check(const spec::LeaseToken& token, int64_t store_epoch) const;
  // Renews the lease from `now`, without shortening a grace. The caller has checked the token.
  void Renew(std::string_view task_id, absl::Duration now);

  const LeaseOptions& options() const { return options_; }

 private:
  const LeaseOptions options_;
  std::map<std::string, Lease, std::less<>> leases_;  // by task
  std::map<std::string, std::string, std::less<>> task_by_island_;
};

// Returns ABORTED (STALE_ATTEMPT) for `token`; `found` describes the state of the task.
absl::Status StaleAttempt(const spec::LeaseToken& token, std::string_view found);

}  // namespace atl::leases
