#include "coordinator/core/core.h"

#include <algorithm>
#include <array>

#include "absl/strings/escaping.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

constexpr absl::Duration kGaugeInterval = absl::Seconds(1);
constexpr size_t kLastErrors = 5;
// Between two lines on the same failure of the store.
constexpr absl::Duration kFailureLogInterval = absl::Minutes(1);

// Errors of the store itself, or what a test puts in their place, as against those that a decision returned.
bool IsStoreFailure(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason.rfind("STORE_", 0) == 0 || reason == "FAILPOINT";
}

}  // namespace

Core::Core(store::Store* store, Clock* clock, CoreOptions options, CoreMetrics* metrics)
    : store_(*store),
      clock_(*clock),
      options_(std::move(options)),
      metrics_(*metrics),
      start_(clock->Monotonic()),
      leases_(options_.lease),
      job_watches_(options_.watch_interval),
      model_watches_(options_.watch_interval) {}

absl::StatusOr<std::unique_ptr<Core>> Core::Load(store::Store* store, Clock* clock, CoreOptions options,
                                                 CoreMetrics* metrics) {
  std::unique_ptr<Core> core(new Core(store, clock, std::move(options), metrics));
  ATOLL_RETURN_IF_ERROR(core->LoadState());
  core->UpdateGauges();
  return core;
}

absl::Status Core::LoadState() {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<leases::Island> islands, store_.Islands());
  for (const leases::Island& island : islands) islands_[island.island_id] = island;
  ATOLL_ASSIGN_OR_RETURN(std::vector<jobs::JobRecord> records, store_.UnfinishedJobs());
  for (jobs::JobRecord& record : records) {
    age_of_job_[record.job.job_id] = next_age_++;
    stale_jobs_.insert(record.job.job_id);
    active_[record.job.job_id] = std::move(record);
  }
  metrics_.store_epoch->Set(static_cast<double>(store_.epoch()));
  metrics_.collection_held->Set(store_.collection_held() ? 1 : 0);
  ATOLL_RETURN_IF_ERROR(LoadFailures());
  return RestoreAttempts();
}

absl::Status Core::LoadFailures() {
  for (const auto& [job_id, record] : active_) {
    for (const jobs::Task& task : record.tasks) {
      if (task.failures == 0 || jobs::IsFinal(task.state)) continue;
      ATOLL_ASSIGN_OR_RETURN(const std::vector<store::AttemptRow> attempts, store_.Attempts(task.task_id));
      for (const store::AttemptRow& row : attempts) {
        if (row.outcome == jobs::AttemptOutcome::kFailed) {
          failures_[task.task_id][row.island_id] = {.last = row.end_time, .errors = 1};
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Core::RestoreAttempts() {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::AttemptRow> attempts, store_.ActiveAttempts());
  for (const store::AttemptRow& row : attempts) {
    const std::string job_id(jobs::JobIdOf(row.task_id));
    if (row.store_epoch == store_.epoch()) {
      leases_.Restore({row.task_id, job_id, row.island_id, row.incarnation, row.attempt, row.secret_sha256, "", {}},
                      Now());
      continue;
    }
    const jobs::JobRecord* active = Active(job_id);
    if (active == nullptr) continue;
    jobs::JobRecord record = *active;
    const jobs::AttemptEnd end{jobs::AttemptOutcome::kRestored, false, "the store took a higher epoch"};
    ATOLL_ASSIGN_OR_RETURN(const jobs::Effect effect, jobs::EndAttempt(record, row.task_id, end, clock_.Now()));
    ATOLL_RETURN_IF_ERROR(Apply("restore", std::move(record), effect, nullptr, nullptr));
  }
  spdlog::info("store epoch {}: {} unfinished jobs, {} islands, {} live attempts", store_.epoch(), active_.size(),
               islands_.size(), leases_.size());
  if (store_.collection_held()) {
    spdlog::warn(
        "the store was restored at epoch {} and may not know the newest checkpoints: nothing is deleted from the blob "
        "store until the coordinator is started once with --adopt",
        store_.restored_epoch());
  }
  return absl::OkStatus();
}

std::string Core::RandomHex(size_t bytes) const {
  return absl::BytesToHexString(options_.random_bytes(bytes));
}

const jobs::JobRecord* Core::Active(std::string_view job_id) const {
  const auto it = active_.find(job_id);
  return it == active_.end() ? nullptr : &it->second;
}

absl::Status Core::Write(std::string_view name, const TransactionBody& body) {
  const absl::Duration start = Now();
  const absl::Status status = store_.Write(name, body);
  metrics_.store_write_seconds->Observe(absl::ToDoubleSeconds(Now() - start));
  if (!IsStoreFailure(status)) return status;
  metrics_.store_write_failures->Increment();
  // All calls meet a full disk, again and again: one line tells of them.
  const std::string reason = ErrorReason(status);
  if (reason == write_failure_ && Now() - write_failure_logged_ < kFailureLogInterval) return status;
  write_failure_ = reason;
  write_failure_logged_ = Now();
  spdlog::error("store: {}: {} [{}]", name, std::string(status.message()), reason);
  return status;
}

absl::Status Core::Apply(std::string_view name, jobs::JobRecord record, const jobs::Effect& effect,
                         const TransactionBody& before, const TransactionBody& after) {
  ATOLL_RETURN_IF_ERROR(Write(name, [&](store::Transaction& transaction) -> absl::Status {
    if (before) ATOLL_RETURN_IF_ERROR(before(transaction));
    ATOLL_ASSIGN_OR_RETURN(record.job.revision, transaction.NextRevision());
    ATOLL_RETURN_IF_ERROR(transaction.UpdateJob(record.job));
    for (const std::string& task_id : effect.changed_tasks) {
      ATOLL_RETURN_IF_ERROR(transaction.UpdateTask(*jobs::FindTask(record, task_id)));
    }
    for (const jobs::EndedAttempt& ended : effect.ended_attempts) {
      ATOLL_RETURN_IF_ERROR(transaction.EndAttempt(ended, clock_.Now()));
    }
    return after ? after(transaction) : absl::OkStatus();
  }));
  spdlog::info("{}", effect.reason);
  TakeOver(std::move(record), effect);
  return absl::OkStatus();
}

void Core::TakeOver(jobs::JobRecord record, const jobs::Effect& effect) {
  for (const jobs::EndedAttempt& ended : effect.ended_attempts) {
    leases_.End(ended.task_id);
    progress_.erase(ended.task_id);
    answered_claims_.erase(ended.task_id);
    const jobs::Task& before = *jobs::FindTask(*Active(record.job.job_id), ended.task_id);
    if (jobs::FindTask(record, ended.task_id)->failures > before.failures) {
      IslandFailures& failures = failures_[ended.task_id][before.island_id];
      failures.last = clock_.Now();
      ++(ended.outcome == jobs::AttemptOutcome::kFailed ? failures.errors : failures.losses);
    }
    metrics_.AttemptsEnded(ended.outcome)->Increment();
  }
  const std::string job_id = record.job.job_id;
  if (jobs::IsFinal(record.job.state)) {
    metrics_.jobs_ended[static_cast<size_t>(record.job.state)]->Increment();
    for (const jobs::Task& task : record.tasks) failures_.erase(task.task_id);
    active_.erase(job_id);
  } else {
    active_[job_id] = std::move(record);
  }
  stale_jobs_.insert(job_id);
  JobChanged(job_id);
}

JobView Core::ViewOf(jobs::JobRecord record) {
  JobView view;
  // Ignores progress that cannot be read, because it is only for display.
  if (auto last = store_.FinalProgress(record.job.job_id); last.ok()) view.progress = *std::move(last);
  for (const jobs::Task& task : record.tasks) {
    const auto it = progress_.find(task.task_id);
    if (it != progress_.end() && it->second.attempt == task.attempt) view.progress[task.task_id] = it->second.progress;
    if (task.state != jobs::TaskState::kFailed) continue;
    auto attempts = store_.Attempts(task.task_id);
    if (!attempts.ok()) continue;
    std::reverse(attempts->begin(), attempts->end());
    if (attempts->size() > kLastErrors) attempts->resize(kLastErrors);
    view.last_errors[task.task_id] = *std::move(attempts);
  }
  view.record = std::move(record);
  return view;
}

absl::StatusOr<std::optional<std::string>> Core::FindAnswer(const CallKey& key) {
  std::optional<std::string> response;
  if (key.request_id.empty()) return response;
  ATOLL_RETURN_IF_ERROR(leases::CheckRequestId(key.request_id));
  std::optional<store::Answer> answer;
  ATOLL_RETURN_IF_ERROR(store_.Write("find_answer", [&](store::Transaction& transaction) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(answer, transaction.FindAnswer(key.caller, key.method, key.request_id));
    return absl::OkStatus();
  }));
  if (!answer) return response;
  if (answer->payload_hash != key.payload_hash) {
    return FieldError("request_id", "REQUEST_ID_REUSED",
                      fmt::format("expected the request that '{}' was first used for by {}, found another",
                                  key.request_id, key.method));
  }
  response = std::move(answer->response);
  return response;
}

absl::Status Core::RecordAnswer(store::Transaction& transaction, const CallKey& key, std::string response) {
  if (key.request_id.empty()) return absl::OkStatus();
  return transaction.InsertAnswer(
      {key.caller, key.method, key.request_id, key.payload_hash, std::move(response), clock_.Now()});
}

void Core::Tick() {
  const absl::Duration now = Now();
  ServeWaitingClaims();
  std::vector<int64_t> over;
  for (const auto& [ticket, claim] : claims_) {
    if (claim.deadline <= now) over.push_back(ticket);
  }
  for (const int64_t ticket : over) TryAnswer(ticket);
  SendDueWatches();
  if (now >= gauges_due_) UpdateGauges();
}

absl::Duration Core::NextWake() const {
  absl::Duration next = std::min({gauges_due_, job_watches_.NextWake(), model_watches_.NextWake()});
  for (const auto& [ticket, claim] : claims_) next = std::min(next, claim.deadline);
  // A lease that runs out makes its task claimable for those who wait; so does the end of a move, or of those who were
  // to run what failed elsewhere.
  if (!claims_.empty()) next = std::min(next, candidates_until_);
  return next;
}

void Core::Deliver() {
  // A callback may lead to another call of this class, which gathers further ones.
  while (!outbox_.empty()) {
    std::vector<std::function<void()>> callbacks;
    callbacks.swap(outbox_);
    for (const auto& callback : callbacks) callback();
  }
}

void Core::UpdateGauges() {
  const absl::Duration now = Now();
  gauges_due_ = now + kGaugeInterval;
  JudgeIslands();
  std::array<int, 6> by_job_state{};
  std::array<int, 7> by_task_state{};
  for (const auto& [job_id, record] : active_) {
    ++by_job_state[static_cast<size_t>(record.job.state)];
    for (const jobs::Task& task : record.tasks) ++by_task_state[static_cast<size_t>(task.state)];
  }
  for (size_t state = 1; state <= 2; ++state) metrics_.jobs[state]->Set(by_job_state[state]);
  for (size_t state = 1; state <= 6; ++state) metrics_.tasks[state]->Set(by_task_state[state]);
  const auto live = std::count_if(islands_.begin(), islands_.end(), [&](const auto& entry) {
    return entry.second.last_seen > absl::ZeroDuration() &&
           now - entry.second.last_seen <= options_.lease.lease_duration;
  });
  metrics_.islands_live->Set(static_cast<double>(live));
  const auto drained = std::count_if(islands_.begin(), islands_.end(),
                                     [](const auto& entry) { return !entry.second.drain_reason.empty(); });
  metrics_.islands_drained->Set(static_cast<double>(drained));
  const size_t expired = leases_.CountExpired(now);
  metrics_.leases_expired->Set(static_cast<double>(expired));
  metrics_.leases_live->Set(static_cast<double>(leases_.size() - expired));
  metrics_.waiting_claims->Set(static_cast<double>(claims_.size()));
  metrics_.watches->Set(static_cast<double>(watches()));
}

}  // namespace atl::coordinator
