#include "tests/chaos/watcher.h"

#include <algorithm>

namespace atl::chaos {
namespace {

namespace pb = atlpb::job::v1;

bool IsTraining(const pb::Task& task) {
  return task.kind() == pb::TASK_KIND_TRAIN_EXPERT || task.kind() == pb::TASK_KIND_TRAIN_ROUTER;
}

}  // namespace

void Watcher::OnJob(const pb::Job& job, absl::Duration now) {
  for (const pb::Task& task : job.tasks()) {
    if (!IsTraining(task) || task.attempt() == 0) continue;
    Attempt& attempt = attempts_[task.task_id()];
    if (attempt.number != task.attempt()) {
      const int64_t lost = std::max<int64_t>(attempt.last - task.committed_step(), 0);
      if (attempt.number > 0) {
        repeated_ += lost;
        CycleCost& cost = cycles_[cycle_];
        ++cost.ended_attempts;
        cost.repeated_steps = std::max(cost.repeated_steps, lost);
      }
      attempt = {.number = task.attempt(), .first = task.committed_step(), .last = task.committed_step()};
    }
    attempt.island = task.island_id();
    attempt.leased = task.state() == pb::Task::STATE_LEASED;
    attempt.over = task.state() == pb::Task::STATE_SUCCEEDED;
    const int64_t step = std::max(task.progress().step(), task.committed_step());
    if (step > attempt.last) {
      done_ += step - attempt.last;
      attempt.last = step;
    }
  }
  std::erase_if(kills_, [&](const Kill& kill) {
    const Attempt& attempt = attempts_.at(kill.task_id);
    const bool again = attempt.number > kill.attempt;
    // READY again, or leased and without a new step: not yet.
    if (again && attempt.last == attempt.first && !attempt.over) return false;
    if (!again && !attempt.over) return false;
    // A task that the killed attempt had finished lost nothing.
    if (!again) return true;
    CycleCost& cost = cycles_[kill.fault.cycle];
    cost.first_new_step = std::max(cost.first_new_step, now - kill.fault.at);
    return true;
  });
}

void Watcher::OnFault(const Fault& fault) {
  cycle_ = fault.cycle;
  cycles_[cycle_].faults.push_back(fault);
  if (fault.kind != FaultKind::kKill) return;
  const std::string island = fault.node.substr(0, fault.node.find('/'));
  for (const auto& [task_id, attempt] : attempts_) {
    if (attempt.leased && attempt.island == island) kills_.push_back({fault, task_id, attempt.number});
  }
}

std::vector<Fault> Watcher::unanswered() const {
  std::vector<Fault> faults;
  for (const Kill& kill : kills_) faults.push_back(kill.fault);
  return faults;
}

}  // namespace atl::chaos
