// Membership and heartbeats.
#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/core/epoch.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

// Islands that a caller may have registered, where its quota says nothing else.
constexpr int64_t kMaxIslands = 4'000;
// An island that is silent for so long does not count.
constexpr absl::Duration kCountedSilence = absl::Hours(24);
// An island that is silent for so long, holds nothing and is not drained is forgotten.
constexpr absl::Duration kMemory = absl::Hours(24 * 7);

}  // namespace

absl::StatusOr<Registration> Core::RegisterIsland(std::string_view island_id, std::string_view request_id,
                                                  const leases::Capabilities& capabilities, const IslandQuota& quota) {
  const auto known = islands_.find(island_id);
  ATOLL_ASSIGN_OR_RETURN(leases::RegisterDecision decision,
                         leases::DecideRegister(known == islands_.end() ? nullptr : &known->second, island_id,
                                                request_id, capabilities, Now()));
  if (known == islands_.end()) ATOLL_RETURN_IF_ERROR(CheckIslandQuota(quota, island_id));
  if (decision.durable_change) decision.island.register_time = clock_.Now();
  const auto put_island = [&](store::Transaction& transaction) {
    return transaction.PutIsland(decision.island, clock_.Now());
  };
  const leases::Lease* held = decision.releases_leases ? leases_.HeldBy(island_id) : nullptr;
  if (held != nullptr && Active(held->job_id) != nullptr) {
    jobs::JobRecord record = *Active(held->job_id);
    const std::string message = fmt::format("island {} started again", island_id);
    ATOLL_ASSIGN_OR_RETURN(
        const jobs::Effect effect,
        jobs::EndAttempt(record, held->task_id, {jobs::AttemptOutcome::kReplaced, false, message}, clock_.Now()));
    ATOLL_RETURN_IF_ERROR(Apply("register", std::move(record), effect, put_island, nullptr));
  } else if (decision.durable_change) {
    ATOLL_RETURN_IF_ERROR(Write("register", put_island));
  }
  spdlog::info("{}", decision.reason);
  islands_.insert_or_assign(std::string(island_id), decision.island);
  if (const auto waiting = claim_of_island_.find(island_id); waiting != claim_of_island_.end()) {
    const int64_t claimed_by = claims_[waiting->second].request.incarnation;
    const absl::Status status = leases::CheckIncarnation(&decision.island, island_id, claimed_by);
    if (!status.ok()) AnswerClaim(waiting->second, status);
  }
  return Registration{decision.island.incarnation, store_.epoch(), options_.lease,
                      EpochUri(options_.blob_root, store_.epoch())};
}

absl::Duration Core::SilenceOf(const leases::Island& island) const {
  return leases::SilenceOf(island, start_, Now(), clock_.Now());
}

absl::Status Core::CheckIslandQuota(const IslandQuota& quota, std::string_view island_id) const {
  const int64_t most = quota.most.value_or(kMaxIslands);
  const int64_t found = std::ranges::count_if(islands_, [&](const auto& entry) {
    return quota.Counts(entry.first) && SilenceOf(entry.second) < kCountedSilence;
  });
  if (found < most) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
      fmt::format("island {}: '{}' may have {} islands registered, found {}, without those that are silent "
                  "for a day (quota: {{islands: N}} in the principals file)",
                  island_id, quota.caller, most, found));
}

absl::Status Core::ForgetSilentIslands() {
  std::vector<std::string> forgotten;
  for (const auto& [island_id, island] : islands_) {
    const bool silent = SilenceOf(island) >= kMemory;
    if (silent && island.drain_reason.empty() && leases_.HeldBy(island_id) == nullptr) forgotten.push_back(island_id);
  }
  if (forgotten.empty()) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(Write("forget_islands", [&](store::Transaction& transaction) -> absl::Status {
    for (const std::string& island_id : forgotten) ATOLL_RETURN_IF_ERROR(transaction.DeleteIsland(island_id));
    return absl::OkStatus();
  }));
  for (const std::string& island_id : forgotten) {
    islands_.erase(island_id);
    step_times_.erase(island_id);
  }
  spdlog::info("{} islands are forgotten, the first of them {}: they were silent for {}", forgotten.size(),
               forgotten.front(), absl::FormatDuration(kMemory));
  return absl::OkStatus();
}

absl::StatusOr<HeartbeatAnswer> Core::Heartbeat(std::string_view island_id, int64_t incarnation, int64_t sequence,
                                                const std::vector<spec::LeaseToken>& tokens, absl::Duration step_time) {
  const auto it = islands_.find(island_id);
  ATOLL_RETURN_IF_ERROR(leases::CheckIncarnation(it == islands_.end() ? nullptr : &it->second, island_id, incarnation));
  leases::Island& island = it->second;
  HeartbeatAnswer answer;
  answer.drain_reason = island.drain_reason;
  // An older heartbeat that was overtaken says nothing about now.
  const bool current = sequence > island.heartbeat_sequence;
  if (current) {
    island.heartbeat_sequence = sequence;
    island.last_seen = Now();
  }
  for (const spec::LeaseToken& token : tokens) {
    // The secret of another island's attempt must not keep that attempt alive.
    if (!leases_.Check(token, store_.epoch()).ok() || leases_.Find(token.task_id)->island_id != island_id) {
      answer.revoked.push_back({token.task_id, VerdictOf(token)});
      continue;
    }
    const jobs::Task* task = jobs::FindTask(*Active(leases_.Find(token.task_id)->job_id), token.task_id);
    if (island.drain_reason.empty() && IsAskedFor(*task)) answer.stopping.push_back({token.task_id, "MOVED"});
    if (!current) continue;
    RenewLease(token.task_id);
    TakeStepTime(island.island_id, token, step_time);
  }
  return answer;
}

std::string Core::VerdictOf(const spec::LeaseToken& token) const {
  const std::string job_id(jobs::JobIdOf(token.task_id));
  if (const jobs::JobRecord* record = Active(job_id)) {
    const jobs::Task* task = jobs::FindTask(*record, token.task_id);
    if (task == nullptr) return "TASK_UNKNOWN";
    return jobs::IsFinal(task->state) ? "TASK_ENDED" : "STALE_ATTEMPT";
  }
  const auto record = store_.GetJob(job_id);
  if (!record.ok()) return "TASK_UNKNOWN";
  switch (record->job.state) {
    case jobs::JobState::kCancelled:
      return "JOB_CANCELLED";
    case jobs::JobState::kFailed:
      return "JOB_FAILED";
    default:
      return "TASK_ENDED";
  }
}

}  // namespace atl::coordinator
