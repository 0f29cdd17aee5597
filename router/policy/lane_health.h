// Whether a lane still answers, judged by its calls alone: a server that is stopped, or whose packets are lost, keeps
// its connection. Pure; every time is monotonic.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "router/policy/step_scheduler.h"

namespace atl::router {

// HEALTHY -> SUSPECT with the first miss, -> QUARANTINED with more; any answer leads back to HEALTHY.
enum class LaneHealth {
  kHealthy,
  kSuspect,      // gets calls only where no healthy lane hosts the network
  kQuarantined,  // gets none but probes
};

// What is known of one lane. Not thread-safe.
class LaneRecord {
 public:
  // An answer, late ones too, whatever it says of the batch: the lane lives.
  void Answered();
  // A call or probe that failed as UNAVAILABLE, or that was not answered within its step deadline.
  void Missed(absl::Duration now);
  // A copy of a call left for the lane, only to see whether it answers. No other does until it was answered or missed.
  void Probed();
  // The lane came back (a new connection, another process): judged anew.
  void Reset() { Answered(); }

  LaneHealth health() const;
  bool ProbeDue(absl::Duration now) const { return !probing_ && now >= probe_at_; }
  // InfiniteDuration when none will be due: healthy, or a probe is under way.
  absl::Duration probe_at() const { return probing_ ? absl::InfiniteDuration() : probe_at_; }
  int32_t misses() const { return misses_; }

 private:
  int32_t misses_ = 0;  // since the last answer
  absl::Duration probe_at_ = absl::InfiniteDuration();
  bool probing_ = false;
};

// What the scheduler may use of lanes[i], whose health is health[i]: nothing of a quarantined lane, and of a suspect
// one what no healthy lane hosts.
std::vector<LaneState> UsableLanes(std::vector<LaneState> lanes, const std::vector<LaneHealth>& health);

}  // namespace atl::router
