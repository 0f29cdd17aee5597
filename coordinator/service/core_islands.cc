// Membership and heartbeats.
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/jobs/task_graph.h"
#include "coordinator/service/core.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {

absl::StatusOr<Registration> Core::RegisterIsland(std::string_view island_id, std::string_view request_id,
                                                  const leases::Capabilities& capabilities) {
  const auto known = islands_.find(island_id);
  ATOLL_ASSIGN_OR_RETURN(const leases::RegisterDecision decision,
                         leases::DecideRegister(known == islands_.end() ? nullptr : &known->second, island_id,
                                                request_id, capabilities, Now(), options_.membership));
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
    ATOLL_RETURN_IF_ERROR(store_.Write("register", put_island));
  }
  spdlog::info("{}", decision.reason);
  islands_.insert_or_assign(std::string(island_id), decision.island);
  if (const auto waiting = claim_of_island_.find(island_id); waiting != claim_of_island_.end()) {
    const int64_t claimed_by = claims_[waiting->second].request.incarnation;
    const absl::Status status = leases::CheckIncarnation(&decision.island, island_id, claimed_by);
    if (!status.ok()) AnswerClaim(waiting->second, status);
  }
  return Registration{decision.island.incarnation, store_.epoch(), options_.lease};
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
    if (!leases_.Check(token, store_.epoch()).ok()) {
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
