// What to do about a call of a network that fails or does not answer: wait, call another replica, or give up. Pure;
// stateless, so that asking again after anything happened goes on from what is there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/policy/lane_health.h"
#include "router/policy/network_id.h"

namespace atl::router {

// After it nothing is expected of a call, however alive its lane is.
constexpr absl::Duration kLongestCall = absl::Seconds(30);
constexpr int32_t kMaxAttempts = 6;  // per step, hedges included
// The wait for a new replica where none is left.
constexpr absl::Duration kReplicaWait = absl::Seconds(5);

// One call to one replica.
struct CallAttempt {
  int32_t lane = 0;
  bool remote = true;  // a thread of this process is neither late nor lost
  absl::Duration started;
  bool loads_first = false;                 // the lane did not have the network when the call left
  std::optional<absl::Duration> failed_at;  // with an error after which another replica may do better
};

// A lane within reach that hosts the network.
struct Replica {
  int32_t lane = 0;
  LaneHealth health = LaneHealth::kHealthy;
  int32_t free_slots = 0;
  int32_t numerics = 0;  // what lanes of equal arithmetic share
};

struct FailoverState {
  std::vector<CallAttempt> attempts;  // of one step's batch, in the order of their starts; none was answered
  std::vector<Replica> replicas;
  int64_t rows = 1;
  absl::Duration p95_per_row;  // of the network's calls; zero before any was measured
  int32_t hedges = 0;          // of the attempts
  // Reproducible batches go only where the arithmetic is this one; 0: any will do.
  int32_t numerics = 0;
  // From when on the budget allows another attempt (RetryBudget).
  absl::Duration budget_at = absl::ZeroDuration();
  // Since when no replica that is not quarantined has hosted the network; InfiniteDuration while one does.
  absl::Duration no_replica_since = absl::InfiniteDuration();
};

enum class FailoverAction {
  kWait,    // until an answer, a failure, a change of the replicas, or look_again_at
  kRetry,   // call `lane`; the attempts before it are over
  kHedge,   // call `lane` too; whoever answers first counts
  kGiveUp,  // the network is lost to this step
};

struct FailoverDecision {
  FailoverAction action = FailoverAction::kWait;
  int32_t lane = 0;                                         // of kRetry and kHedge
  absl::Duration look_again_at = absl::InfiniteDuration();  // of kWait
  std::string reason;
};

// How long a call of so many rows may take before it is late: four times what 95 % of the network's calls take, by
// rows, and a minute more where the network is loaded first.
absl::Duration StepDeadline(const FailoverState& state, bool loads_first);

// Without attempts: kWait (the scheduler starts the first) or kGiveUp. A step is hedged once at most.
FailoverDecision DecideFailover(absl::Duration now, const FailoverState& state);

// Bounds retries and hedges together, so that an overload does not feed on them. Not thread-safe.
class RetryBudget {
 public:
  static constexpr double kShare = 0.1;    // of the calls
  static constexpr double kPerSecond = 1;  // so that a router with few calls can retry too
  static constexpr double kReserve = 16;   // at most saved up; there at the start

  // The first attempt of a step's batch.
  void Called();
  // A retry or a hedge. Taken at AvailableAt() or later.
  void Take(absl::Duration now);
  // From when on one may be taken, if no call comes: `now`, later, or InfiniteDuration.
  absl::Duration AvailableAt(absl::Duration now) const;

 private:
  double SavedAt(absl::Duration now) const;

  double saved_ = kReserve;
  std::optional<absl::Duration> counted_;  // until when kPerSecond is in saved_
};

// Whether another replica may answer better: UNAVAILABLE, and what says so of this lane alone (it no longer hosts the
// network, it dropped the batch, it is overloaded).
bool IsFailoverError(const absl::Status& status);

// UNAVAILABLE with reason EXPERT_LOST, naming the network, the replicas tried and `why`.
absl::Status ExpertLost(const NetworkId& network, std::span<const std::string> replicas, std::string_view why);

}  // namespace atl::router
