// Claims: granting at once, waiting, answering later.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/jobs/storage_access.h"
#include "coordinator/jobs/task_graph.h"
#include "coordinator/leases/attempt_secret.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

constexpr size_t kSecretBytes = 16;
// A process that ended once may have been preempted, and its island is the next to have room for the task.
constexpr int32_t kLossesThatTell = 2;
// How long a task that failed on an island, or was lost there twice, is kept for others, while some other can run it.
// Else an island that fails all of its tasks, and so is always free, would use up the failure budget of every job.
constexpr absl::Duration kFailureMemory = absl::Hours(1);
// Longest that a claim may wait, whatever it asks for.
constexpr absl::Duration kMaxClaimWait = absl::Minutes(1);

absl::Status StillLetIn(const ClaimRequest& request) {
  return request.still_let_in ? request.still_let_in() : absl::OkStatus();
}

}  // namespace

std::string Core::WritePrefix(std::string_view task_id, int64_t attempt) const {
  return fmt::format("{}/jobs/{}/{}-{}", options_.blob_root, task_id, store_.epoch(), attempt);
}

std::set<std::string> Core::FailedIslands(const leases::Candidate& candidate) const {
  const auto failures = failures_.find(candidate.task_id);
  if (failures == failures_.end()) return {};
  std::set<std::string> failed;
  for (const auto& [island_id, island] : failures->second) {
    const bool fails = island.errors > 0 || island.losses >= kLossesThatTell;
    if (fails && clock_.Now() - island.last < kFailureMemory) failed.insert(island_id);
  }
  const auto can_run = [&](const auto& entry) {
    const leases::Island& island = entry.second;
    return !failed.contains(island.island_id) &&
           leases::ActivityOf(island, /*holds_lease=*/false, Now(), options_.lease.lease_duration) ==
               leases::IslandActivity::kIdle &&
           leases::UnmetRequirement(island, candidate).empty();
  };
  if (failed.empty() || std::none_of(islands_.begin(), islands_.end(), can_run)) return {};
  return failed;
}

std::vector<leases::Candidate> Core::CandidatesOf(const jobs::JobRecord& record, absl::Duration* until) const {
  const absl::Duration now = Now();
  std::vector<leases::Candidate> candidates;
  std::optional<jobs::PartitionUris> partitions;
  *until = absl::InfiniteDuration();
  for (const jobs::Task& task : record.tasks) {
    const bool expired = task.state == jobs::TaskState::kLeased && leases_.Expired(task.task_id, now);
    if (task.state != jobs::TaskState::kReady && !expired) continue;
    leases::Candidate& candidate = candidates.emplace_back(CandidateOf(record, task));
    if (expired) candidate.expired_island = task.island_id;
    if (jobs::IsTraining(task.kind)) {
      if (!partitions) partitions = jobs::PartitionUrisOf(record);
      candidate.input_uris = jobs::InputUrisOf(*partitions, task);
    }
    const absl::Duration move_left = task.move.until - clock_.Now();
    if (move_left > absl::ZeroDuration()) {
      candidate.wanted_island = task.move.to;
      candidate.avoided_island = task.move.from;
      *until = std::min(*until, now + move_left);
    }
    candidate.failed_islands = FailedIslands(candidate);
    // The others may be lost by then.
    if (!candidate.failed_islands.empty()) *until = std::min(*until, now + options_.lease.lease_duration);
  }
  return candidates;
}

leases::Candidate Core::CandidateOf(const jobs::JobRecord& record, const jobs::Task& task) const {
  leases::Candidate candidate;
  candidate.task_id = task.task_id;
  candidate.kind = task.kind;
  candidate.priority = record.job.spec.priority;
  candidate.requirements = record.job.spec.requirements;
  candidate.requirements.min_ranks = spec::LeastRanks(record.job.spec);
  return candidate;
}

void Core::UpdateCandidates() {
  const absl::Duration now = Now();
  if (stale_jobs_.empty() && now < candidates_until_) return;
  if (now >= candidates_until_) {
    for (const leases::Lease& lease : leases_.All()) {
      if (lease.expires <= now) stale_jobs_.insert(lease.job_id);
    }
    for (const auto& [job_id, until] : jobs_until_) {
      if (until <= now) stale_jobs_.insert(job_id);
    }
  }
  for (const std::string& job_id : std::exchange(stale_jobs_, {})) {
    const auto age = age_of_job_.find(job_id);
    if (age == age_of_job_.end()) continue;
    jobs_until_.erase(job_id);
    const jobs::JobRecord* record = Active(job_id);
    if (record == nullptr) {
      candidates_.Put(age->second, {});
      age_of_job_.erase(age);
      continue;
    }
    absl::Duration until;
    if (candidates_.Put(age->second, CandidatesOf(*record, &until))) new_candidates_.insert(age->second);
    if (until < absl::InfiniteDuration()) jobs_until_[job_id] = until;
  }
  candidates_until_ = leases_.NextExpiry(now);
  for (const auto& [job_id, until] : jobs_until_) candidates_until_ = std::min(candidates_until_, until);
}

void Core::RenewLease(std::string_view task_id) {
  const leases::Lease* lease = leases_.Find(task_id);
  if (lease != nullptr && lease->expires <= Now()) stale_jobs_.insert(lease->job_id);
  leases_.Renew(task_id, Now());
}

absl::StatusOr<spec::TaskGrant> Core::KeepLease(const spec::LeaseToken& token) {
  ATOLL_RETURN_IF_ERROR(CheckLease(token));
  RenewLease(token.task_id);
  ATOLL_ASSIGN_OR_RETURN(spec::TaskGrant grant, GrantOf(*leases_.Find(token.task_id)));
  // A lease from before a restart does not know its secret.
  grant.token = token;
  return grant;
}

absl::StatusOr<spec::TaskGrant> Core::GrantOf(const leases::Lease& lease) {
  const jobs::JobRecord* record = Active(lease.job_id);
  const jobs::Task* task = jobs::FindTask(*record, lease.task_id);
  spec::TaskGrant grant;
  grant.token = {lease.task_id, store_.epoch(), lease.attempt, lease.secret};
  grant.job_id = lease.job_id;
  grant.kind = task->kind;
  grant.index = task->index;
  grant.spec = record->job.spec;
  grant.dataset_manifest_uri = record->job.dataset_manifest_uri;
  grant.inputs = jobs::InputsOf(*record, *task);
  grant.write_prefix = WritePrefix(lease.task_id, lease.attempt);
  grant.skipped = jobs::SkippedBy(*task);
  grant.lease_duration = options_.lease.lease_duration;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::CheckpointRow> rows, store_.Checkpoints(lease.task_id));
  for (const store::CheckpointRow& row : rows) {
    // In step order: the last committed one wins.
    if (row.state == store::CheckpointState::kCommitted) grant.resume_from = row.checkpoint;
  }
  grant.storage = jobs::StorageAccessOf(grant, options_.blob_root);
  return grant;
}

absl::Status Core::ReplaceSecret(const leases::Lease& lease) {
  const std::string secret = options_.random_bytes(kSecretBytes);
  ATOLL_RETURN_IF_ERROR(Write("replace_secret", [&](store::Transaction& transaction) {
    return transaction.ReplaceSecret(lease.task_id, lease.attempt, leases::SecretHash(secret));
  }));
  spdlog::info("attempt {} of task {}: asked for again after a restart, and gets another secret", lease.attempt,
               lease.task_id);
  leases_.ReplaceSecret(lease.task_id, secret);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<spec::TaskGrant>> Core::GrantTask(const leases::Island& island, std::string_view task_id) {
  jobs::JobRecord record = *Active(jobs::JobIdOf(task_id));
  jobs::Effect effect;
  const jobs::Task* task = jobs::FindTask(record, task_id);
  if (task->state == jobs::TaskState::kLeased) {
    const std::string message = fmt::format("the lease of island {} ran out", task->island_id);
    ATOLL_ASSIGN_OR_RETURN(
        effect, jobs::EndAttempt(record, task_id, {jobs::AttemptOutcome::kExpired, false, message}, clock_.Now()));
    if (task->state != jobs::TaskState::kReady) {
      ATOLL_RETURN_IF_ERROR(Apply("expire", std::move(record), effect, nullptr, nullptr));
      return std::optional<spec::TaskGrant>();
    }
  }
  const int64_t attempt = task->attempt + 1;
  ATOLL_ASSIGN_OR_RETURN(jobs::Effect granted, jobs::Grant(record, task_id, attempt, island.island_id));
  effect.changed_tasks.insert(granted.changed_tasks.begin(), granted.changed_tasks.end());
  effect.reason = granted.reason;

  store::AttemptRow row;
  row.task_id = task_id;
  row.attempt = attempt;
  row.store_epoch = store_.epoch();
  row.island_id = island.island_id;
  row.incarnation = island.incarnation;
  const std::string secret = options_.random_bytes(kSecretBytes);
  row.secret_sha256 = leases::SecretHash(secret);
  row.start_time = clock_.Now();
  const std::string job_id = record.job.job_id;
  ATOLL_RETURN_IF_ERROR(Apply("grant", std::move(record), effect, nullptr,
                              [&](store::Transaction& transaction) { return transaction.InsertAttempt(row); }));
  leases_.Grant({row.task_id, job_id, row.island_id, row.incarnation, attempt, row.secret_sha256, secret, {}}, Now());
  metrics_.grants->Increment();
  ATOLL_ASSIGN_OR_RETURN(spec::TaskGrant grant, GrantOf(*leases_.Find(task_id)));
  return std::optional<spec::TaskGrant>(std::move(grant));
}

absl::StatusOr<ClaimAnswer> Core::TryClaim(const ClaimRequest& request, const std::set<int64_t>* ages) {
  const auto it = islands_.find(request.island_id);
  ATOLL_RETURN_IF_ERROR(
      leases::CheckIncarnation(it == islands_.end() ? nullptr : &it->second, request.island_id, request.incarnation));
  it->second.last_seen = Now();
  if (const leases::Lease* held = leases_.HeldBy(request.island_id)) {
    ATOLL_RETURN_IF_ERROR(StillLetIn(request));
    RenewLease(held->task_id);
    if (held->secret.empty()) ATOLL_RETURN_IF_ERROR(ReplaceSecret(*held));
    ATOLL_ASSIGN_OR_RETURN(spec::TaskGrant grant, GrantOf(*held));
    return ClaimAnswer{std::move(grant), {}};
  }
  if (!it->second.drain_reason.empty()) {
    return ClaimAnswer{std::nullopt,
                       {fmt::format("island {} is drained: {}", request.island_id, it->second.drain_reason)}};
  }
  // Each turn either grants, finds nothing that fits, or takes a task out of the candidates for good.
  while (true) {
    UpdateCandidates();
    const leases::ClaimDecision decision = candidates_.Decide(it->second, request.cached_uris, ages);
    if (decision.candidate == nullptr) return ClaimAnswer{std::nullopt, decision.unmet};
    ATOLL_RETURN_IF_ERROR(StillLetIn(request));
    const std::string task_id = decision.candidate->task_id;
    spdlog::debug("claim of island {}: {}", request.island_id, decision.reason);
    ATOLL_ASSIGN_OR_RETURN(std::optional<spec::TaskGrant> grant, GrantTask(it->second, task_id));
    if (grant) return ClaimAnswer{std::move(grant), {}};
  }
}

void Core::TryAnswer(int64_t ticket, const std::set<int64_t>* ages) {
  const WaitingClaim& claim = claims_.find(ticket)->second;
  absl::StatusOr<ClaimAnswer> answer = TryClaim(claim.request, ages);
  const bool over = ages == nullptr && claim.deadline <= Now();
  if (!answer.ok() || answer->grant || over) AnswerClaim(ticket, std::move(answer));
}

int64_t Core::ClaimTask(const ClaimRequest& request, ClaimCallback done) {
  const int64_t ticket = next_ticket_++;
  if (const auto earlier = claim_of_island_.find(request.island_id); earlier != claim_of_island_.end()) {
    // The island lost its first call and asks again.
    AnswerClaim(earlier->second, MakeError(absl::StatusCode::kAborted, "CLAIM_REPLACED",
                                           fmt::format("island {} claimed again", request.island_id)));
  }
  WaitingClaim& claim = claims_[ticket];
  claim.request = request;
  claim.done = std::move(done);
  claim.deadline = Now() + std::clamp(request.wait, absl::ZeroDuration(), kMaxClaimWait);
  claim_of_island_[request.island_id] = ticket;
  TryAnswer(ticket);
  return ticket;
}

void Core::CancelClaim(int64_t ticket) {
  const auto it = claims_.find(ticket);
  if (it == claims_.end()) return;
  claim_of_island_.erase(it->second.request.island_id);
  claims_.erase(it);
}

void Core::TakeBack(int64_t ticket, const spec::LeaseToken& token) {
  const auto answered = answered_claims_.find(token.task_id);
  if (answered == answered_claims_.end() || answered->second != ticket) return;
  if (!leases_.Check(token, store_.epoch()).ok()) return;
  const absl::Status status =
      EndAttempt("release_task", token,
                 {.outcome = jobs::AttemptOutcome::kReleased,
                  .message = "released: the island was gone, or shut out, before it was told of it",
                  .asked_for = true});
  if (!status.ok()) spdlog::warn("task {}: its lease is left to run out: {}", token.task_id, status.ToString());
}

void Core::AnswerClaim(int64_t ticket, absl::StatusOr<ClaimAnswer> answer) {
  const auto it = claims_.find(ticket);
  if (answer.ok() && answer->grant) answered_claims_[answer->grant->token.task_id] = ticket;
  outbox_.push_back([done = std::move(it->second.done), answer = std::move(answer)] { done(answer); });
  CancelClaim(ticket);
}

void Core::ServeWaitingClaims() {
  if (claims_.empty()) {
    // A new claim is offered every candidate first.
    new_candidates_.clear();
    offer_everything_ = false;
    return;
  }
  UpdateCandidates();
  // A grant may bring new candidates with it.
  while (offer_everything_ || !new_candidates_.empty()) {
    const bool everything = std::exchange(offer_everything_, false);
    const std::set<int64_t> ages = std::exchange(new_candidates_, {});
    std::vector<int64_t> tickets;
    for (const auto& [ticket, claim] : claims_) tickets.push_back(ticket);
    for (const int64_t ticket : tickets) {
      // First come, first served; a ticket may be gone when an earlier answer ended it.
      if (claims_.contains(ticket)) TryAnswer(ticket, everything ? nullptr : &ages);
    }
    UpdateCandidates();
  }
}

}  // namespace atl::coordinator
