// Decides how long a failed lane is avoided, and which of its evaluations are retried. Pure; every time is monotonic.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/network_id.h"
#include "router/policy/cost_estimates.h"

namespace atl::router {

// A call to another machine fails after this time without an answer.
constexpr absl::Duration kLongestCall = absl::Seconds(30);
// An evaluation is tried on a second lane if the first one fails, and on no third.
constexpr int32_t kMaxAttempts = 2;
// The wait for a lane when none hosts a network any more.
constexpr absl::Duration kReplicaWait = absl::Seconds(5);
// The time for which a lane is not used for a network that it failed to evaluate, though it answered.
constexpr absl::Duration kNetworkPause = absl::Seconds(1);

// Returns the time limit for the first attempt at a batch on another machine: a multiple of the measured time of such
// batches, and kLongestCall before the first measurement. The second attempt always has kLongestCall.
absl::Duration FirstAttemptLimit(const BatchCost& took, int64_t rows);

// Decides whether a lane on another machine gets batches. Closed: as many as it has slots. Open, for a while after a
// failure that doubles: none. Half-open, after that: one at a time, until one is answered. A server that is stopped, or
// whose packets are lost, keeps its connection, so only its answers show its state.
class CircuitBreaker {
 public:
  // Call when the lane answered or reconnected.
  void Close() { *this = {}; }
  // Call when a call failed or timed out. Changes nothing while open: that call was sent earlier.
  void Trip(absl::Duration now);

  bool open(absl::Duration now) const { return now < open_until_; }
  bool half_open(absl::Duration now) const { return failures_ > 0 && !open(now); }
  absl::Duration open_until() const { return open_until_; }

 private:
  int32_t failures_ = 0;  // since the last answer
  absl::Duration open_until_ = -absl::InfiniteDuration();
};

// Whether another lane may succeed: UNAVAILABLE, and errors that concern only this lane (it no longer hosts the
// network, it dropped the batch, it is overloaded).
bool IsFailoverError(const absl::Status& status);

// Returns UNAVAILABLE (EXPERT_LOST), naming the network and `why`.
absl::Status ExpertLost(const NetworkId& network, std::string_view why);

}  // namespace atl::router
