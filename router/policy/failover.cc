#include "router/policy/failover.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

constexpr absl::Duration kMinDeadline = absl::Milliseconds(200);
constexpr double kDeadlineFactor = 4;
// Before any call of the network was measured: the first may find cold caches.
constexpr absl::Duration kUnmeasuredDeadline = absl::Seconds(5);
// More for a call whose network is loaded first.
constexpr absl::Duration kLoadAllowance = absl::Minutes(1);
constexpr int32_t kMaxHedges = 1;  // per step
// Before a replica that failed is called again; doubles.
constexpr absl::Duration kRetryBackoff = absl::Milliseconds(100);

// Where one attempt stands.
enum class Standing {
  kInTime,
  kLate,  // may still answer
  kOver,  // failed, or nothing is expected of it any more
};

const Replica* FindReplica(const FailoverState& state, int32_t lane) {
  const auto found = std::find_if(state.replicas.begin(), state.replicas.end(),
                                  [lane](const Replica& replica) { return replica.lane == lane; });
  return found == state.replicas.end() ? nullptr : &*found;
}

struct Times {
  absl::Duration late;
  absl::Duration over;
};

Times TimesOf(const CallAttempt& attempt, const FailoverState& state) {
  if (!attempt.remote) return {.late = absl::InfiniteDuration(), .over = absl::InfiniteDuration()};
  const absl::Duration deadline = StepDeadline(state, attempt.loads_first);
  return {.late = attempt.started + deadline, .over = attempt.started + std::max(deadline, kLongestCall)};
}

Standing StandingOf(absl::Duration now, const CallAttempt& attempt, const FailoverState& state) {
  if (attempt.failed_at) return Standing::kOver;
  const Times times = TimesOf(attempt, state);
  if (now < times.late) return Standing::kInTime;
  // A late call is given up with its lane: one that answered nothing else either will hardly answer this.
  const Replica* replica = FindReplica(state, attempt.lane);
  if (now >= times.over || replica == nullptr || replica->health == LaneHealth::kQuarantined) return Standing::kOver;
  return Standing::kLate;
}

absl::Duration EndOf(const CallAttempt& attempt, const FailoverState& state) {
  return attempt.failed_at ? *attempt.failed_at : TimesOf(attempt, state).late;
}

struct Candidate {
  int32_t lane = 0;
  absl::Duration ready_at;  // when its backoff is over
};

// The replica to call next, of those that owe no answer: one that was not tried before one that was, a healthy one
// before a suspect one, an idle one before a busy one.
std::optional<Candidate> NextReplica(absl::Duration now, const FailoverState& state) {
  std::optional<Candidate> best;
  std::tuple<int32_t, int32_t, int32_t, int32_t> best_order;
  for (const Replica& replica : state.replicas) {
    if (replica.health == LaneHealth::kQuarantined) continue;
    if (state.numerics != 0 && replica.numerics != state.numerics) continue;
    int32_t tries = 0;
    bool owes_answer = false;
    absl::Duration ready_at = now;
    for (const CallAttempt& attempt : state.attempts) {
      if (attempt.lane != replica.lane) continue;
      if (!attempt.failed_at) owes_answer = true;
      ready_at = EndOf(attempt, state) + kRetryBackoff * (1 << std::min(tries, 10));
      ++tries;
    }
    if (owes_answer) continue;
    const std::tuple order(tries, replica.health == LaneHealth::kHealthy ? 0 : 1, -replica.free_slots, replica.lane);
    if (best && best_order <= order) continue;
    best = Candidate{.lane = replica.lane, .ready_at = std::max(ready_at, now)};
    best_order = order;
  }
  return best;
}

FailoverDecision Wait(absl::Duration until, std::string reason) {
  return {.action = FailoverAction::kWait, .look_again_at = until, .reason = std::move(reason)};
}

FailoverDecision GiveUp(std::string reason) {
  return {.action = FailoverAction::kGiveUp, .reason = std::move(reason)};
}

// Nothing is under way: another replica, now or soon, or the end.
FailoverDecision AfterAll(absl::Duration now, const FailoverState& state) {
  if (static_cast<int32_t>(state.attempts.size()) >= kMaxAttempts) {
    return GiveUp(fmt::format("{} calls brought no answer", state.attempts.size()));
  }
  absl::Duration since = -absl::InfiniteDuration();
  for (const CallAttempt& attempt : state.attempts) since = std::max(since, EndOf(attempt, state));
  const auto candidate = NextReplica(now, state);
  if (!candidate) {
    const absl::Duration until = std::min(since, state.no_replica_since) + kReplicaWait;
    if (now < until) return Wait(until, "no replica is left: a new one may come");
    return GiveUp("no replica is left");
  }
  // Bounded too, for a step must end where the budget stays empty.
  if (state.budget_at > now && now >= since + kReplicaWait) return GiveUp("the budget of retries is used up");
  const absl::Duration ready_at = std::max(candidate->ready_at, std::min(state.budget_at, since + kReplicaWait));
  if (now < ready_at) return Wait(ready_at, state.budget_at > now ? "the budget of retries is used up" : "backing off");
  return {.action = FailoverAction::kRetry, .lane = candidate->lane, .reason = "the call before failed"};
}

}  // namespace

absl::Duration StepDeadline(const FailoverState& state, bool loads_first) {
  const absl::Duration allowance = loads_first ? kLoadAllowance : absl::ZeroDuration();
  if (state.p95_per_row <= absl::ZeroDuration()) return kUnmeasuredDeadline + allowance;
  const absl::Duration usual = state.p95_per_row * static_cast<double>(state.rows);
  return std::max(kMinDeadline, kDeadlineFactor * usual) + allowance;
}

FailoverDecision DecideFailover(absl::Duration now, const FailoverState& state) {
  if (state.attempts.empty()) {
    if (state.no_replica_since == absl::InfiniteDuration()) return Wait(absl::InfiniteDuration(), "not started yet");
    const absl::Duration until = state.no_replica_since + kReplicaWait;
    return now < until ? Wait(until, "no replica: a new one may come") : GiveUp("no replica is left");
  }
  bool in_time = false;
  bool late = false;
  absl::Duration next = absl::InfiniteDuration();
  for (const CallAttempt& attempt : state.attempts) {
    const Standing standing = StandingOf(now, attempt, state);
    if (standing == Standing::kOver) continue;
    const Times times = TimesOf(attempt, state);
    in_time = in_time || standing == Standing::kInTime;
    late = late || standing == Standing::kLate;
    next = std::min(next, standing == Standing::kInTime ? times.late : times.over);
  }
  if (in_time) return Wait(next, "the call is in time");
  if (!late) return AfterAll(now, state);
  if (state.hedges >= kMaxHedges) return Wait(next, "late, and hedged already");
  const auto candidate = NextReplica(now, state);
  if (!candidate) return Wait(next, "late, and no other replica");
  const absl::Duration ready_at = std::max(candidate->ready_at, state.budget_at);
  if (now < ready_at) return Wait(std::min(next, ready_at), "late, and the budget of retries is used up");
  return {.action = FailoverAction::kHedge, .lane = candidate->lane, .reason = "the call is late"};
}

void RetryBudget::Called() {
  saved_ = std::min(saved_ + kShare, kReserve);
}

double RetryBudget::SavedAt(absl::Duration now) const {
  const absl::Duration since = counted_ ? std::max(now - *counted_, absl::ZeroDuration()) : absl::ZeroDuration();
  return std::min(saved_ + kPerSecond * absl::ToDoubleSeconds(since), kReserve);
}

void RetryBudget::Take(absl::Duration now) {
  saved_ = SavedAt(now) - 1;
  counted_ = now;
}

absl::Duration RetryBudget::AvailableAt(absl::Duration now) const {
  const double saved = SavedAt(now);
  if (saved >= 1) return now;
  // A step further than the sum says, which is rounded.
  return now + absl::Seconds((1 - saved) / kPerSecond) + absl::Microseconds(1);
}

bool IsFailoverError(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return ErrorReason(status) == "NETWORK_NOT_HOSTED";
  }
}

absl::Status ExpertLost(const NetworkId& network, std::span<const std::string> replicas, std::string_view why) {
  const std::string tried =
      replicas.empty() ? "none was within reach" : fmt::format("tried '{}'", absl::StrJoin(replicas, "', '"));
  return MakeError(absl::StatusCode::kUnavailable, "EXPERT_LOST",
                   fmt::format("{}: no replica answers: {} ({})", Describe(network), why, tried));
}

}  // namespace atl::router
