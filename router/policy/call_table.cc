#include "router/policy/call_table.h"

#include <algorithm>
#include <cstdint>

namespace atl::router {

void CallTable::SetLanes(std::span<const CallLane> lanes) {
  std::map<int32_t, LaneEntry> entries;
  for (const CallLane& lane : lanes) {
    const auto before = lanes_.find(lane.state.lane);
    LaneRecord record = before == lanes_.end() ? LaneRecord() : before->second.record;
    if (before != lanes_.end() && before->second.lane.state.networks.empty() && !lane.state.networks.empty()) {
      record.Reset();
    }
    entries.emplace(lane.state.lane, LaneEntry{.lane = lane, .record = record});
  }
  lanes_ = std::move(entries);
}

std::vector<LaneState> CallTable::Usable(absl::Duration now) const {
  std::vector<LaneState> lanes;
  std::vector<LaneHealth> health;
  for (const auto& [number, entry] : lanes_) {
    lanes.push_back(entry.lane.state);
    health.push_back(entry.record.health());
  }
  lanes = UsableLanes(std::move(lanes), health);
  // Without a call nobody would ever learn that the last replica answers again.
  size_t place = 0;
  for (const auto& [number, entry] : lanes_) {
    LaneState& lane = lanes[place++];
    if (entry.record.health() != LaneHealth::kQuarantined || !entry.record.ProbeDue(now)) continue;
    for (const LaneNetwork& hosted : entry.lane.state.networks) {
      if (!Hosted({hosted.model, hosted.network}, 0)) lane.networks.push_back(hosted);
    }
    lane.free_slots = std::min(lane.free_slots, 1);
  }
  return lanes;
}

bool CallTable::Hosts(const LaneEntry& entry, Network network) const {
  const std::vector<LaneNetwork>& networks = entry.lane.state.networks;
  return std::any_of(networks.begin(), networks.end(), [&](const LaneNetwork& hosted) {
    return hosted.model == network.first && hosted.network == network.second;
  });
}

bool CallTable::Hosted(Network network, int32_t numerics) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
    const auto& [number, entry] = lane;
    return entry.record.health() != LaneHealth::kQuarantined && Hosts(entry, network) &&
           (numerics == 0 || entry.lane.state.numerics == numerics);
  });
}

void CallTable::OpenOn(int64_t call, const Call& state, int32_t lane, absl::Duration now) {
  OpenAttempt attempt{.network = state.network, .rows = state.rows, .started = now};
  const auto entry = lanes_.find(lane);
  if (entry != lanes_.end()) {
    attempt.remote = entry->second.lane.remote;
    for (const LaneNetwork& hosted : entry->second.lane.state.networks) {
      if (Network(hosted.model, hosted.network) == state.network) attempt.loads_first = !hosted.resident;
    }
    --entry->second.lane.state.free_slots;
    // Such a lane is called for no other reason.
    attempt.probe = entry->second.record.health() == LaneHealth::kQuarantined;
    if (attempt.probe) entry->second.record.Probed();
  }
  LookAgain(LateAt(attempt), now);
  open_[{call, lane}] = attempt;
}

void CallTable::Start(int64_t call, int64_t model, int32_t network, int64_t rows, int32_t numerics, int32_t lane,
                      absl::Duration now) {
  Call& started = calls_[call];
  started = {.network = {model, network}, .rows = rows, .numerics = numerics};
  OpenOn(call, started, lane, now);
  const OpenAttempt& attempt = open_[{call, lane}];
  started.attempts.push_back(
      {.lane = lane, .remote = attempt.remote, .started = now, .loads_first = attempt.loads_first});
  budget_.Called();
  ++counts_.calls;
}

int32_t CallTable::TakeProbe(int64_t call, absl::Duration now) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return -1;
  for (auto& [number, entry] : lanes_) {
    if (!entry.record.ProbeDue(now) || !Hosts(entry, found->second.network) || open_.contains({call, number})) continue;
    // No attempt of the call: nothing depends on it.
    OpenOn(call, found->second, number, now);
    open_[{call, number}].probe = true;
    entry.record.Probed();
    ++counts_.probes;
    return number;
  }
  return -1;
}

bool CallTable::Answered(int64_t call, int32_t lane, absl::Duration now) {
  const auto attempt = open_.find({call, lane});
  if (attempt == open_.end()) return false;
  const OpenAttempt answered = attempt->second;
  open_.erase(attempt);
  const auto entry = lanes_.find(lane);
  if (entry != lanes_.end()) entry->second.record.Answered();
  // Late ones too: a network that has become slow gets a longer deadline. Above zero, which would say that nothing was
  // measured.
  const absl::Duration per_row = (now - answered.started) / static_cast<double>(std::max<int64_t>(answered.rows, 1));
  times_.try_emplace(answered.network).first->second.Add(std::max(per_row, absl::Nanoseconds(1)));
  if (calls_.erase(call) > 0) return true;
  ++counts_.late_answers;
  return false;
}

void CallTable::Failed(int64_t call, int32_t lane, absl::Duration now, bool lives) {
  const auto attempt = open_.find({call, lane});
  if (attempt == open_.end()) return;
  const OpenAttempt failed_attempt = attempt->second;
  open_.erase(attempt);
  const auto waiting = calls_.find(call);
  // Of a call that is over it may be the end that it was told to come to.
  if (waiting == calls_.end() && !failed_attempt.probe) return;
  const auto entry = lanes_.find(lane);
  // In this process it is the network that could not be read again: the lane's others are as good as before.
  const bool blames_lane = failed_attempt.remote && !failed_attempt.missed;
  if (entry != lanes_.end()) {
    if (lives) entry->second.record.Answered();
    if (!lives && blames_lane) entry->second.record.Missed(now);
  }
  if (waiting == calls_.end()) return;
  for (CallAttempt& failed : waiting->second.attempts) {
    if (failed.lane == lane && !failed.failed_at) failed.failed_at = now;
  }
}

void CallTable::Drop(int64_t call) {
  calls_.erase(call);
}

std::vector<int32_t> CallTable::Owing(int64_t call) const {
  std::vector<int32_t> lanes;
  for (auto it = open_.lower_bound({call, INT32_MIN}); it != open_.end() && it->first.first == call; ++it) {
    if (!it->second.probe) lanes.push_back(it->first.second);
  }
  return lanes;
}

absl::Duration CallTable::LateAt(const OpenAttempt& attempt) const {
  if (!attempt.remote) return absl::InfiniteDuration();
  FailoverState state{.rows = attempt.rows};
  const auto times = times_.find(attempt.network);
  if (times != times_.end()) state.p95_per_row = times->second.Value(0.95);
  return attempt.started + StepDeadline(state, attempt.loads_first);
}

void CallTable::LookAgain(absl::Duration at, absl::Duration now) {
  if (at > now) look_again_at_ = std::min(look_again_at_, at);
}

void CallTable::NoteMisses(absl::Duration now) {
  for (auto& [key, attempt] : open_) {
    if (attempt.missed) continue;
    const absl::Duration late_at = LateAt(attempt);
    LookAgain(late_at, now);
    if (now < late_at) continue;
    attempt.missed = true;
    const auto entry = lanes_.find(key.second);
    if (entry != lanes_.end()) entry->second.record.Missed(now);
  }
}

void CallTable::NoteReplicas(absl::Duration now) {
  for (const auto& [id, call] : calls_) no_replica_since_.try_emplace({call.network, call.numerics}, now);
  std::erase_if(no_replica_since_, [&](const auto& entry) { return Hosted(entry.first.first, entry.first.second); });
  for (const auto& [replicas, since] : no_replica_since_) LookAgain(since + kReplicaWait, now);
}

FailoverState CallTable::StateOf(const Call& call, absl::Duration now) const {
  FailoverState state{.attempts = call.attempts,
                      .rows = call.rows,
                      .hedges = call.hedges,
                      .numerics = call.numerics,
                      .budget_at = budget_.AvailableAt(now)};
  for (const auto& [number, entry] : lanes_) {
    if (!Hosts(entry, call.network)) continue;
    state.replicas.push_back({.lane = number,
                              .health = entry.record.health(),
                              .free_slots = entry.lane.state.free_slots,
                              .numerics = entry.lane.state.numerics});
  }
  const auto times = times_.find(call.network);
  if (times != times_.end()) state.p95_per_row = times->second.Value(0.95);
  const auto since = no_replica_since_.find({call.network, call.numerics});
  if (since != no_replica_since_.end()) state.no_replica_since = since->second;
  return state;
}

std::vector<CallMove> CallTable::Decide(absl::Duration now) {
  look_again_at_ = absl::InfiniteDuration();
  NoteMisses(now);
  NoteReplicas(now);
  for (const auto& [number, entry] : lanes_) {
    if (!entry.lane.state.networks.empty()) LookAgain(entry.record.probe_at(), now);
  }
  std::vector<CallMove> moves;
  for (auto it = calls_.begin(); it != calls_.end();) {
    auto& [id, call] = *it;
    const FailoverDecision decision = DecideFailover(now, StateOf(call, now));
    if (decision.action == FailoverAction::kWait) {
      LookAgain(decision.look_again_at, now);
      ++it;
      continue;
    }
    CallMove move{.call = id, .action = decision.action, .lane = decision.lane, .reason = decision.reason};
    if (decision.action == FailoverAction::kGiveUp) {
      for (const CallAttempt& attempt : call.attempts) {
        if (std::find(move.tried.begin(), move.tried.end(), attempt.lane) == move.tried.end()) {
          move.tried.push_back(attempt.lane);
        }
      }
      ++counts_.given_up;
      moves.push_back(std::move(move));
      it = calls_.erase(it);
      continue;
    }
    budget_.Take(now);
    const bool hedge = decision.action == FailoverAction::kHedge;
    hedge ? ++counts_.hedges : ++counts_.retries;
    if (hedge) ++call.hedges;
    // A probe of this call may be there already: its answer is as good as another's.
    const bool there = open_.contains({id, decision.lane});
    if (!there) OpenOn(id, call, decision.lane, now);
    const OpenAttempt& attempt = open_[{id, decision.lane}];
    call.attempts.push_back(
        {.lane = decision.lane, .remote = attempt.remote, .started = now, .loads_first = attempt.loads_first});
    if (!there) moves.push_back(std::move(move));
    ++it;
  }
  return moves;
}

bool CallTable::Lost(int64_t model, int32_t network, int32_t numerics, absl::Duration now) {
  if (Hosted({model, network}, numerics)) return false;
  const absl::Duration since = no_replica_since_.try_emplace({{model, network}, numerics}, now).first->second;
  LookAgain(since + kReplicaWait, now);
  return DecideFailover(now, {.no_replica_since = since}).action == FailoverAction::kGiveUp;
}

void CallTable::Forget(int64_t model) {
  std::erase_if(times_, [model](const auto& entry) { return entry.first.first == model; });
  std::erase_if(no_replica_since_, [model](const auto& entry) { return entry.first.first.first == model; });
}

LaneHealth CallTable::health(int32_t lane) const {
  const auto entry = lanes_.find(lane);
  return entry == lanes_.end() ? LaneHealth::kHealthy : entry->second.record.health();
}

}  // namespace atl::router
