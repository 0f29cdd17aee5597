// When a lane is left alone after it failed, and what becomes of what it was asked. Pure; every time is monotonic.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/network_id.h"
#include "router/policy/cost_estimates.h"

namespace atl::router {

// A call to another machine that is not answered by then has failed.
constexpr absl::Duration kLongestCall = absl::Seconds(30);
// An evaluation is asked of a second lane where the first one fails, and of no third.
constexpr int32_t kMaxAttempts = 2;
// The wait for a lane where none is left that hosts a network.
constexpr absl::Duration kReplicaWait = absl::Seconds(5);
// For so long a lane is not asked for a network that it could not evaluate, though it answered.
constexpr absl::Duration kNetworkPause = absl::Seconds(1);

// How long the first attempt at a batch may take on another machine: a multiple of what such batches took so far, and
// kLongestCall before any did. The second attempt always has kLongestCall.
absl::Duration FirstAttemptLimit(const BatchCost& took, int64_t rows);

// Whether a lane on another machine gets batches. Closed: as many as it has slots. Open, for a while after a failure
// that doubles: none. Half-open, after that: one at a time, until one is answered. A server that is stopped, or whose
// packets are lost, keeps its connection, so that its answers alone tell.
class CircuitBreaker {
 public:
  // The lane answered, or came back.
  void Close() { *this = {}; }
  // A call failed or was not answered in time. Changes nothing while open: the call left before.
  void Trip(absl::Duration now);

  bool open(absl::Duration now) const { return now < open_until_; }
  bool half_open(absl::Duration now) const { return failures_ > 0 && !open(now); }
  absl::Duration open_until() const { return open_until_; }

 private:
  int32_t failures_ = 0;  // since the last answer
  absl::Duration open_until_ = -absl::InfiniteDuration();
};

// Whether another lane may answer better: UNAVAILABLE, and what says so of this lane alone (it no longer hosts the
// network, it dropped the batch, it is overloaded).
bool IsFailoverError(const absl::Status& status);

// UNAVAILABLE with reason EXPERT_LOST, naming the network and `why`.
absl::Status ExpertLost(const NetworkId& network, std::string_view why);

}  // namespace atl::router
