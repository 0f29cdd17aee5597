// Calls of networks that are under way, and what their answers say of the lanes. A call is one batch; it makes
// attempts, on one lane each, until one is answered. Pure; every time is monotonic.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "router/policy/failover.h"
#include "router/policy/lane_health.h"
#include "router/policy/running_percentile.h"
#include "router/policy/step_scheduler.h"

namespace atl::router {

// A lane of the engine as it is now: without networks while it is out of reach.
struct CallLane {
  LaneState state;
  bool remote = false;
};

// What to do about a call. The table counts it as done.
struct CallMove {
  int64_t call = 0;
  FailoverAction action = FailoverAction::kRetry;  // kRetry, kHedge or kGiveUp
  int32_t lane = 0;                                // of kRetry and kHedge: start the batch there too
  std::vector<int32_t> tried;                      // of kGiveUp: lanes, in the order of the attempts
  std::string reason;
};

// Since the start.
struct CallCounts {
  int64_t calls = 0;
  int64_t retries = 0;
  int64_t hedges = 0;
  int64_t probes = 0;
  int64_t late_answers = 0;  // that came when nobody waited for them
  int64_t given_up = 0;
};

// Not thread-safe.
class CallTable {
 public:
  // All lanes, in place of those given before. One that hosts again after it hosted nothing is judged anew.
  void SetLanes(std::span<const CallLane> lanes);
  // The lanes as the scheduler may use them: without those whose health forbids it, but for one call where a probe is
  // due and nobody else hosts the network.
  std::vector<LaneState> Usable(absl::Duration now) const;

  // The scheduler started a call, whose id was never used before. `numerics`: those to which a reproducible call is
  // bound, else 0.
  void Start(int64_t call, int64_t model, int32_t network, int64_t rows, int32_t numerics, int32_t lane,
             absl::Duration now);
  // The lane to which a copy of the call just started goes as well, to see whether the lane answers again; -1: none.
  int32_t TakeProbe(int64_t call, absl::Duration now);

  // An attempt was answered, or failed in a way that no other replica would change. True when it ends the call; false
  // when it comes too late, and changes nothing but what is known of the lane.
  bool Answered(int64_t call, int32_t lane, absl::Duration now);
  // An attempt failed (IsFailoverError): Decide says what follows. `lives`: by the lane's own word that it has the
  // network no longer.
  void Failed(int64_t call, int32_t lane, absl::Duration now, bool lives = false);
  // Nobody waits for the call any more.
  void Drop(int64_t call);
  // The lanes whose answers to a call that is over are of no use: it may be cancelled there.
  std::vector<int32_t> Owing(int64_t call) const;

  // What is due by now, and when to ask again. To be asked after every change too.
  std::vector<CallMove> Decide(absl::Duration now);
  absl::Duration look_again_at() const { return look_again_at_; }

  // Whether a lane that is not quarantined hosts the network, of whatever arithmetic.
  bool HostedAnyhow(int64_t model, int32_t network) const { return Hosted({model, network}, 0); }
  // Whether a call of the network has no lane to go to, and none is waited for any more. `numerics`: of a call that is
  // bound to them, else 0.
  bool Lost(int64_t model, int32_t network, int32_t numerics, absl::Duration now);

  // A model version that is gone; no call of it is under way.
  void Forget(int64_t model);

  LaneHealth health(int32_t lane) const;
  const CallCounts& counts() const { return counts_; }

 private:
  using Network = std::pair<int64_t, int32_t>;  // model, network

  struct Call {
    Network network;
    int64_t rows = 1;
    int32_t numerics = 0;
    int32_t hedges = 0;
    std::vector<CallAttempt> attempts;
  };
  // An attempt whose lane owes an answer, whether or not its call is still waiting.
  struct OpenAttempt {
    Network network;
    int64_t rows = 1;
    bool remote = false;
    bool loads_first = false;
    absl::Duration started;
    bool missed = false;  // counted against the lane
    bool probe = false;   // what becomes of it counts, whatever became of the call
  };
  struct LaneEntry {
    CallLane lane;
    LaneRecord record;
  };

  FailoverState StateOf(const Call& call, absl::Duration now) const;
  absl::Duration LateAt(const OpenAttempt& attempt) const;
  void OpenOn(int64_t call, const Call& state, int32_t lane, absl::Duration now);
  bool Hosts(const LaneEntry& entry, Network network) const;
  bool Hosted(Network network, int32_t numerics) const;  // by a lane that is not quarantined
  // Counts lanes that owe answers which are late.
  void NoteMisses(absl::Duration now);
  void NoteReplicas(absl::Duration now);
  void LookAgain(absl::Duration at, absl::Duration now);

  std::map<int32_t, LaneEntry> lanes_;
  std::map<int64_t, Call> calls_;
  std::map<std::pair<int64_t, int32_t>, OpenAttempt> open_;                 // by call and lane
  std::map<Network, RunningPercentile> times_;                              // per row
  std::map<std::pair<Network, int32_t>, absl::Duration> no_replica_since_;  // by network and numerics
  RetryBudget budget_;
  CallCounts counts_;
  absl::Duration look_again_at_ = absl::InfiniteDuration();
};

}  // namespace atl::router
