// Leases: the time-limited right to a task. Pure; every time is monotonic, since an arbitrary start.
//
// A lease that ran out is only claimable: its attempt stays valid, and any heartbeat or commit renews it, until another
// attempt is granted. What is durable of a lease (attempt, island, incarnation, hash of the secret) is the store's;
// when it runs out is known here only, and a restart gives every live lease a period of grace.
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
  // Empty when this process does not know it: it was granted before a restart. Its island goes on with it all the same.
  std::string secret;
  absl::Duration expires = absl::ZeroDuration();
};

// The active attempts, one per task at most and one per island at most. Not thread-safe; owned by the coordinator's
// core.
class LeaseTable {
 public:
  explicit LeaseTable(LeaseOptions options) : options_(options) {}

  // A new lease, from `now`. Replaces the task's earlier one.
  void Grant(Lease lease, absl::Duration now);
  // An active attempt found in the store at start: valid until the grace is over.
  void Restore(Lease lease, absl::Duration now);
  void End(std::string_view task_id);
  // Another secret for the task's active attempt: the one of before is void.
  void ReplaceSecret(std::string_view task_id, std::string secret);

  // Null when the task has no active attempt.
  const Lease* Find(std::string_view task_id) const;
  // The island's active lease, null when it has none. It may have run out.
  const Lease* HeldBy(std::string_view island_id) const;
  bool Expired(std::string_view task_id, absl::Duration now) const;
  // The next time at which some lease runs out; InfiniteDuration when none will. Leases that ran out before `now` are
  // not counted.
  absl::Duration NextExpiry(absl::Duration now) const;
  std::vector<Lease> All() const;
  size_t size() const { return leases_.size(); }
  size_t CountExpired(absl::Duration now) const;

  // OK when the token is of the task's active attempt, else ABORTED with reason STALE_ATTEMPT.
  absl::Status Check(const spec::LeaseToken& token, int64_t store_epoch) const;
  // From `now`, never shortening a grace. The token was checked.
  void Renew(std::string_view task_id, absl::Duration now);

  const LeaseOptions& options() const { return options_; }

 private:
  const LeaseOptions options_;
  std::map<std::string, Lease, std::less<>> leases_;  // by task
  std::map<std::string, std::string, std::less<>> task_by_island_;
};

// ABORTED with reason STALE_ATTEMPT for `token`, `found` saying how the task stands.
absl::Status StaleAttempt(const spec::LeaseToken& token, std::string_view found);

}  // namespace atl::leases
