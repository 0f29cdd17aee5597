// Operators' view of islands and their calls: draining, moving tasks, and detecting slow islands.
#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"
#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

// How long a task that was moved is kept for others than the island it was moved from.
constexpr absl::Duration kMovePreference = absl::Minutes(10);

absl::Status UnknownIsland(std::string_view island_id) {
  return MakeError(absl::StatusCode::kNotFound, "ISLAND_UNKNOWN",
                   fmt::format("no island '{}' has registered with this coordinator", island_id));
}

}  // namespace

bool Core::IsAskedFor(const jobs::Task& task) const {
  if (task.state != jobs::TaskState::kLeased) return false;
  const auto island = islands_.find(task.island_id);
  if (island != islands_.end() && !island->second.drain_reason.empty()) return true;
  return task.move.from == task.island_id && task.move.until > clock_.Now();
}

IslandView Core::ViewOf(const leases::Island& island) {
  IslandView view;
  view.island = island;
  const leases::Lease* lease = leases_.HeldBy(island.island_id);
  view.activity = leases::ActivityOf(island, lease != nullptr, Now(), options_.lease.lease_duration);
  if (island.last_seen > absl::ZeroDuration()) view.last_heard = clock_.Now() - (Now() - island.last_seen);
  if (lease == nullptr) return view;
  view.job_id = lease->job_id;
  view.task = *jobs::FindTask(*Active(lease->job_id), lease->task_id);
  view.step = view.task.committed_step;
  const auto progress = progress_.find(lease->task_id);
  if (progress != progress_.end() && progress->second.attempt == lease->attempt) {
    view.step = std::max(view.step, progress->second.progress.step);
  }
  const auto steps = step_times_.find(island.island_id);
  if (steps != step_times_.end() && steps->second.task_id == lease->task_id &&
      steps->second.attempt == lease->attempt) {
    view.step_time = steps->second.step_time;
    view.judgement = steps->second.judgement;
  }
  return view;
}

std::vector<IslandView> Core::ListIslands() {
  std::vector<IslandView> views;
  for (const auto& [island_id, island] : islands_) {
    const bool shown =
        island.last_seen > absl::ZeroDuration() || !island.drain_reason.empty() || leases_.HeldBy(island_id) != nullptr;
    if (shown) views.push_back(ViewOf(island));
  }
  return views;
}

absl::StatusOr<std::string> Core::DrainIsland(const CallKey& key, std::string_view island_id, std::string_view reason,
                                              const EncodeIsland& encode) {
  ATOLL_ASSIGN_OR_RETURN(std::optional<std::string> before, FindAnswer(key));
  if (before) return *std::move(before);
  const auto it = islands_.find(island_id);
  if (it == islands_.end()) return UnknownIsland(island_id);
  leases::Island island = it->second;
  island.drain_reason = reason;
  std::string response = encode(ViewOf(island));
  ATOLL_RETURN_IF_ERROR(Write("drain_island", [&](store::Transaction& transaction) -> absl::Status {
    ATOLL_RETURN_IF_ERROR(transaction.SetIslandDrain(island_id, reason));
    return RecordAnswer(transaction, key, response);
  }));
  it->second.drain_reason = reason;
  offer_everything_ = true;
  if (reason.empty()) {
    spdlog::info("island {} is not drained any more", island_id);
  } else {
    spdlog::info("island {} is drained: {}", island_id, reason);
  }
  return response;
}

absl::StatusOr<std::string> Core::MoveTask(const CallKey& key, std::string_view task_id, std::string_view to,
                                           const EncodeTask& encode) {
  ATOLL_ASSIGN_OR_RETURN(std::optional<std::string> before, FindAnswer(key));
  if (before) return *std::move(before);
  ATOLL_ASSIGN_OR_RETURN(JobView view, GetJob(jobs::JobIdOf(task_id)));
  const absl::Time until = clock_.Now() + kMovePreference;
  ATOLL_ASSIGN_OR_RETURN(const jobs::Effect effect, jobs::MoveTask(view.record, task_id, to, until));
  const jobs::Task& task = *jobs::FindTask(view.record, task_id);
  if (!to.empty()) ATOLL_RETURN_IF_ERROR(CheckTarget(view.record, task, to));
  std::string response = encode(task);
  ATOLL_RETURN_IF_ERROR(Apply("move_task", view.record, effect, nullptr, [&](store::Transaction& transaction) {
    return RecordAnswer(transaction, key, response);
  }));
  return response;
}

absl::Status Core::CheckTarget(const jobs::JobRecord& record, const jobs::Task& task, std::string_view to) {
  const auto it = islands_.find(to);
  if (it == islands_.end()) return UnknownIsland(to);
  const IslandView view = ViewOf(it->second);
  if (!view.island.drain_reason.empty()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "ISLAND_DRAINED",
                     fmt::format("island {} is granted nothing, it is drained: {}", to, view.island.drain_reason));
  }
  if (view.activity == leases::IslandActivity::kLost) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "ISLAND_LOST",
        fmt::format("island {} was not heard within {}", to, absl::FormatDuration(options_.lease.lease_duration)));
  }
  const std::string unmet = leases::UnmetRequirement(view.island, CandidateOf(record, task));
  if (unmet.empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "ISLAND_UNFIT",
                   fmt::format("island {} cannot run it: {}", to, unmet));
}

void Core::TakeStepTime(const std::string& island_id, const spec::LeaseToken& token, absl::Duration step_time) {
  StepTime& known = step_times_[island_id];
  if (known.task_id != token.task_id || known.attempt != token.attempt) known = {token.task_id, token.attempt, {}, {}};
  known.step_time = step_time;
}

void Core::JudgeIslands() {
  std::vector<leases::StepReport> reports;
  std::vector<StepTime*> judged;
  for (auto it = step_times_.begin(); it != step_times_.end();) {
    StepTime& steps = it->second;
    const leases::Lease* lease = leases_.HeldBy(it->first);
    // The step times of an attempt go with it.
    if (lease == nullptr || lease->task_id != steps.task_id || lease->attempt != steps.attempt) {
      it = step_times_.erase(it);
      continue;
    }
    const jobs::Task& task = *jobs::FindTask(*Active(lease->job_id), lease->task_id);
    const absl::Duration step_time = leases_.Expired(lease->task_id, Now()) ? absl::ZeroDuration() : steps.step_time;
    reports.push_back(
        {it->first, fmt::format("{} {}", lease->job_id, ToString(task.kind)), step_time, steps.judgement.slower_since});
    judged.push_back(&steps);
    ++it;
  }
  const std::vector<leases::StepJudgement> judgements = leases::JudgeStepTimes(reports, Now());
  size_t slow = 0;
  for (size_t i = 0; i < judgements.size(); ++i) {
    if (judgements[i].slow && !judged[i]->judgement.slow) {
      spdlog::warn("island {} is slow: a step takes {:.2f} s, {:.1f} times as long as on others at {}",
                   reports[i].island_id, absl::ToDoubleSeconds(reports[i].step_time), judgements[i].slowdown,
                   reports[i].group);
    } else if (judged[i]->judgement.slow && !judgements[i].slow) {
      spdlog::info("island {} is not slow any more", reports[i].island_id);
    }
    judged[i]->judgement = judgements[i];
    if (judgements[i].slow) ++slow;
  }
  metrics_.islands_slow->Set(static_cast<double>(slow));
}

}  // namespace atl::coordinator
