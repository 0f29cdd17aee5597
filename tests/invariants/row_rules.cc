// Rules that need rows alone.
#include <algorithm>

#include <fmt/format.h>

#include "coordinator/jobs/task_graph.h"
#include "tests/invariants/invariants.h"

namespace atl::testing_invariants {
namespace {

using jobs::AttemptOutcome;
using jobs::JobRecord;
using jobs::JobState;
using jobs::Task;
using jobs::TaskState;
using store::AttemptRow;
using store::CheckpointRow;
using store::CheckpointState;

class RowRules {
 public:
  explicit RowRules(const Story& story) : story_(story) {}

  std::vector<Violation> Run() {
    for (const JobRecord& record : story_.jobs) {
      CheckJob(record);
      for (const Task& task : record.tasks) {
        CheckDependencies(record, task);
        CheckAttempts(task, Rows(story_.attempts, task.task_id));
        CheckSteps(task, Rows(story_.checkpoints, task.task_id));
        CheckResult(record, task);
      }
    }
    CheckIslands();
    for (const JobRecord& record : story_.jobs) CheckPublished(record.job);
    for (const store::Model& model : story_.models) CheckModel(model);
    return std::move(violations_);
  }

 private:
  template <typename... Arguments>
  void Violated(std::string_view rule, fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    violations_.push_back({std::string(rule), fmt::format(format, std::forward<Arguments>(arguments)...)});
  }

  template <typename Row>
  static const std::vector<Row>& Rows(const std::map<std::string, std::vector<Row>, std::less<>>& rows,
                                      const std::string& task_id) {
    static const std::vector<Row> kNone;
    const auto it = rows.find(task_id);
    return it == rows.end() ? kNone : it->second;
  }

  void CheckJob(const JobRecord& record) {
    const jobs::Job& job = record.job;
    const auto count = [&](TaskState state) {
      return std::count_if(record.tasks.begin(), record.tasks.end(),
                           [&](const Task& task) { return task.state == state; });
    };
    const auto all = static_cast<int64_t>(record.tasks.size());
    if (record.tasks.empty()) Violated("jobs", "{} has no task", job.job_id);
    if (job.state == JobState::kSucceeded && count(TaskState::kSucceeded) != all) {
      Violated("jobs", "{} is SUCCEEDED with {} of {} tasks SUCCEEDED", job.job_id, count(TaskState::kSucceeded), all);
    }
    if (job.state == JobState::kFailed && count(TaskState::kFailed) == 0) {
      Violated("jobs", "{} is FAILED, but none of its tasks", job.job_id);
    }
    if (job.state == JobState::kPending &&
        std::any_of(record.tasks.begin(), record.tasks.end(), [](const Task& task) { return task.attempt > 0; })) {
      Violated("jobs", "{} is PENDING, but a task of it was granted", job.job_id);
    }
    for (const Task& task : record.tasks) {
      if (jobs::IsFinal(job.state) && !jobs::IsFinal(task.state)) {
        Violated("jobs", "{} is {}, but {} is {}", job.job_id, ToString(job.state), task.task_id, ToString(task.state));
      }
      const bool ended_badly = task.state == TaskState::kFailed || task.state == TaskState::kCancelled;
      if (!jobs::IsFinal(job.state) && ended_badly) {
        Violated("jobs", "{} is {}, but {} is {}", job.job_id, ToString(job.state), task.task_id, ToString(task.state));
      }
    }
    if (jobs::IsFinal(job.state) != (job.end_time != absl::InfinitePast())) {
      Violated("jobs", "{} is {}, but its end time says otherwise", job.job_id, ToString(job.state));
    }
  }

  void CheckDependencies(const JobRecord& record, const Task& task) {
    const bool done = std::all_of(task.depends_on.begin(), task.depends_on.end(), [&](const std::string& id) {
      const Task* before = jobs::FindTask(record, id);
      return before != nullptr && before->state == TaskState::kSucceeded;
    });
    if (!done && task.attempt > 0) Violated("jobs", "{} was granted before what it waits for was done", task.task_id);
    if (done && task.state == TaskState::kBlocked) {
      Violated("jobs", "{} is BLOCKED, but all that it waits for is done", task.task_id);
    }
    if (!done && task.state == TaskState::kReady) Violated("jobs", "{} is READY too early", task.task_id);
  }

  void CheckAttempts(const Task& task, const std::vector<AttemptRow>& rows) {
    int64_t last = 0;
    int64_t epoch = 1;
    int64_t active = 0;
    int64_t succeeded = 0;
    for (const AttemptRow& row : rows) {
      // A restored store continues after attempts that have no row in it.
      if (story_.restored_epoch == 0 && row.attempt != last + 1) {
        Violated("attempts", "{}: expected attempt {} after {}, found {}", task.task_id, last + 1, last, row.attempt);
      }
      if (row.store_epoch < epoch || row.store_epoch > story_.epoch) {
        Violated("attempts", "{}: attempt {} has epoch {}, expected {} to {}", task.task_id, row.attempt,
                 row.store_epoch, epoch, story_.epoch);
      }
      last = row.attempt;
      epoch = row.store_epoch;
      if (row.outcome == AttemptOutcome::kActive) ++active;
      if (row.outcome == AttemptOutcome::kSucceeded) ++succeeded;
      if (row.outcome != AttemptOutcome::kActive && row.attempt == task.attempt && task.state == TaskState::kLeased) {
        Violated("attempts", "{} is LEASED, but its attempt {} has ended {}", task.task_id, row.attempt,
                 ToString(row.outcome));
      }
    }
    if (task.attempt < last || (story_.restored_epoch == 0 && task.attempt != last)) {
      Violated("attempts", "{} is at attempt {}, but its newest row is {}", task.task_id, task.attempt, last);
    }
    if (active != (task.state == TaskState::kLeased ? 1 : 0)) {
      Violated("attempts", "{} is {} with {} active attempts", task.task_id, ToString(task.state), active);
    }
    if (succeeded != (task.state == TaskState::kSucceeded ? 1 : 0)) {
      Violated("attempts", "{} is {}, but {} attempts finished it", task.task_id, ToString(task.state), succeeded);
    }
    if (!rows.empty() && rows.back().attempt == task.attempt && rows.back().island_id != task.island_id) {
      Violated("attempts", "{} names island {}, its attempt {} names {}", task.task_id, task.island_id, task.attempt,
               rows.back().island_id);
    }
  }

  void CheckIslands() {
    std::map<std::string, std::string> held;
    for (const auto& [task_id, rows] : story_.attempts) {
      for (const AttemptRow& row : rows) {
        if (row.outcome != AttemptOutcome::kActive) continue;
        const auto [it, first] = held.emplace(row.island_id, task_id);
        if (!first) Violated("attempts", "island {} holds {} and {} at once", row.island_id, it->second, task_id);
      }
    }
  }

  // Rows come in step order.
  void CheckSteps(const Task& task, const std::vector<CheckpointRow>& rows) {
    const CheckpointRow* before = nullptr;
    int64_t committed = 0;
    bool newest_attempt_committed = false;
    for (const CheckpointRow& row : rows) {
      const int64_t step = row.checkpoint.step;
      if (row.attempt < 1 || row.attempt > task.attempt) {
        Violated("steps", "{}: step {} was committed by attempt {}, which was never granted", task.task_id, step,
                 row.attempt);
      }
      if (row.state == CheckpointState::kSuperseded && task.rollbacks.empty()) {
        Violated("steps", "{}: step {} is superseded, but the task never went back", task.task_id, step);
      }
      for (const jobs::Rollback& rollback : task.rollbacks) {
        // A checkpoint that is adopted after a restore may be from before a rollback.
        if (story_.restored_epoch == 0 && row.state == CheckpointState::kCommitted && row.attempt <= rollback.attempt &&
            step > rollback.to_step) {
          Violated("steps", "{}: step {} of attempt {} is committed, but attempt {} went back to step {}", task.task_id,
                   step, row.attempt, rollback.attempt, rollback.to_step);
        }
      }
      // Above a step that the task went back to, the same steps are committed again.
      const bool counts = row.state == CheckpointState::kCommitted || task.rollbacks.empty();
      if (!counts) continue;
      if (before != nullptr && step == before->checkpoint.step) {
        Violated("steps", "{}: step {} was committed twice, by attempts {} and {}", task.task_id, step, before->attempt,
                 row.attempt);
      } else if (before != nullptr && row.attempt < before->attempt) {
        Violated("steps", "{}: attempt {} committed step {} after attempt {} had committed {}", task.task_id,
                 row.attempt, step, before->attempt, before->checkpoint.step);
      }
      if (row.state == CheckpointState::kCommitted) committed = step;
      newest_attempt_committed |= row.attempt == task.attempt;
      before = &row;
    }
    if (committed != task.committed_step) {
      Violated("steps", "{}: the task says step {}, its newest committed row {}", task.task_id, task.committed_step,
               committed);
    }
    // The newest row is always kept, but for a rollback. An adopted one may be of an attempt that was never granted.
    if (story_.restored_epoch == 0 && task.rollbacks.empty() && newest_attempt_committed != task.attempt_committed) {
      Violated("steps", "{}: attempt {} has committed: {}; its rows say {}", task.task_id, task.attempt,
               task.attempt_committed, newest_attempt_committed);
    }
  }

  void CheckResult(const JobRecord& record, const Task& task) {
    if (task.state != TaskState::kSucceeded) return;
    if (const absl::Status status = jobs::CheckOutputs(task, task.outputs); !status.ok()) {
      Violated("results", "{}: {}", task.task_id, std::string(status.message()));
      return;
    }
    if (!jobs::IsTraining(task.kind)) return;
    const jobs::Job& job = record.job;
    const int64_t steps =
        task.kind == spec::TaskKind::kTrainRouter ? job.spec.router_training.steps : job.spec.training.steps;
    if (task.committed_step != steps) {
      Violated("results", "{} is done at step {} of {}", task.task_id, task.committed_step, steps);
    }
    const std::vector<CheckpointRow>& rows = Rows(story_.checkpoints, task.task_id);
    const bool committed = std::any_of(rows.begin(), rows.end(), [&](const CheckpointRow& row) {
      return row.state == CheckpointState::kCommitted && row.checkpoint.step == steps &&
             row.checkpoint.manifest_uri == task.outputs[0].uri &&
             row.checkpoint.manifest_sha256 == task.outputs[0].sha256;
    });
    if (!committed) Violated("results", "{}: no committed row of step {} is its output", task.task_id, steps);
  }

  // How often, says CheckModel.
  void CheckPublished(const jobs::Job& job) {
    if (job.state != JobState::kSucceeded) return;
    const bool there = std::any_of(story_.models.begin(), story_.models.end(),
                                   [&](const store::Model& model) { return model.name == job.spec.model_name; });
    if (!there) Violated("versions", "{} has SUCCEEDED, but there is no model {}", job.job_id, job.spec.model_name);
  }

  void CheckModel(const store::Model& model) {
    for (const store::ModelVersionRow& version : model.versions) {
      const auto job = std::find_if(story_.jobs.begin(), story_.jobs.end(),
                                    [&](const JobRecord& record) { return record.job.job_id == version.job_id; });
      if (job == story_.jobs.end()) continue;  // deleted: versions stay
      const bool published = job->job.state == JobState::kSucceeded && job->job.model_version == version.version &&
                             std::any_of(job->tasks.begin(), job->tasks.end(), [&](const Task& task) {
                               return task.kind == spec::TaskKind::kPublish && !task.outputs.empty() &&
                                      task.outputs[0].sha256 == version.digest;
                             });
      if (!published) Violated("versions", "{} {} is not what its job published", model.name, version.version);
    }
    for (const JobRecord& record : story_.jobs) {
      if (record.job.state != JobState::kSucceeded || record.job.spec.model_name != model.name) continue;
      const auto versions = std::count_if(model.versions.begin(), model.versions.end(),
                                          [&](const auto& version) { return version.job_id == record.job.job_id; });
      if (versions != 1) Violated("versions", "{} has {} versions of {}", model.name, versions, record.job.job_id);
    }
    const bool known = std::any_of(model.versions.begin(), model.versions.end(),
                                   [&](const auto& version) { return version.version == model.serving.version; });
    if (!known) Violated("versions", "{} serves {}, which is no version", model.name, model.serving.version);
    int64_t generation = 0;
    for (const store::ServingRow& row : story_.serving_history.at(model.name)) {
      if (row.generation != ++generation) {
        Violated("versions", "{}: expected generation {}, found {}", model.name, generation, row.generation);
      }
    }
    if (model.serving.generation != generation) {
      Violated("versions", "{} serves generation {}, its history ends with {}", model.name, model.serving.generation,
               generation);
    }
  }

  const Story& story_;
  std::vector<Violation> violations_;
};

}  // namespace

std::vector<Violation> CheckRows(const Story& story) {
  return RowRules(story).Run();
}

}  // namespace atl::testing_invariants
