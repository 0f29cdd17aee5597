#include "tests/invariants/invariants.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <regex>

#include <fmt/format.h>

#include "coordinator/jobs/task_graph.h"

namespace atl::testing_invariants {
namespace {

int64_t Number(const std::string& digits) {
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

const jobs::Task* FindTask(const Story& story, std::string_view task_id) {
  for (const jobs::JobRecord& record : story.jobs) {
    if (const jobs::Task* task = jobs::FindTask(record, task_id); task != nullptr) return task;
  }
  return nullptr;
}

// Whether `attempt` or a later one, up to `last`, ended with the task going back below `step`.
bool WentBack(const jobs::Task& task, int64_t step, int64_t attempt,
              int64_t last = std::numeric_limits<int64_t>::max()) {
  return std::any_of(task.rollbacks.begin(), task.rollbacks.end(), [&](const jobs::Rollback& rollback) {
    return rollback.attempt >= attempt && rollback.attempt <= last && rollback.to_step < step;
  });
}

// Rows go once later ones are there, so a commit may be vouched for by a later one; or the task went back.
bool HasCommit(const Story& story, const jobs::Task& task, const Acknowledged::Commit& commit) {
  const auto rows = story.checkpoints.find(task.task_id);
  const bool there = rows != story.checkpoints.end() &&
                     std::any_of(rows->second.begin(), rows->second.end(), [&](const store::CheckpointRow& row) {
                       return row.checkpoint.step == commit.step && row.attempt == commit.attempt;
                     });
  return there || task.committed_step > commit.step || WentBack(task, commit.step, commit.attempt);
}

}  // namespace

std::string ToString(const std::vector<Violation>& violations) {
  std::string text;
  for (const Violation& violation : violations) text += fmt::format("{}: {}\n", violation.rule, violation.what);
  return text;
}

void AddFromLog(std::string_view log, Acknowledged* acknowledged) {
  static const std::regex kClaimed(R"(task (\S+) \(.*\) attempt (\d+): claimed)");
  static const std::regex kCommitted(R"(task (\S+) attempt (\d+): checkpoint of step (\d+) is committed)");
  while (!log.empty()) {
    const std::string line(log.substr(0, log.find('\n')));
    log.remove_prefix(std::min(log.size(), line.size() + 1));
    std::smatch match;
    if (std::regex_search(line, match, kClaimed)) {
      int64_t& newest = acknowledged->granted[match[1]];
      newest = std::max(newest, Number(match[2]));
    } else if (std::regex_search(line, match, kCommitted)) {
      acknowledged->commits.insert({match[1], Number(match[2]), Number(match[3])});
    }
  }
}

std::vector<Violation> CheckAcknowledged(const Story& story, const Acknowledged& acknowledged) {
  std::vector<Violation> violations;
  const auto lost = [&](std::string what) { violations.push_back({"acknowledged", std::move(what)}); };
  for (const std::string& job_id : acknowledged.jobs) {
    const bool there = std::any_of(story.jobs.begin(), story.jobs.end(),
                                   [&](const jobs::JobRecord& record) { return record.job.job_id == job_id; });
    if (!there) lost(fmt::format("job {} was submitted, but there is none", job_id));
  }
  for (const auto& [task_id, attempt] : acknowledged.granted) {
    const jobs::Task* task = FindTask(story, task_id);
    if (task == nullptr || task->attempt < attempt) {
      lost(fmt::format("attempt {} of {} was granted, but the store is at {}", attempt, task_id,
                       task == nullptr ? 0 : task->attempt));
    }
  }
  std::map<std::pair<std::string, int64_t>, int64_t> by_step;
  for (const Acknowledged::Commit& commit : acknowledged.commits) {
    const jobs::Task* task = FindTask(story, commit.task_id);
    if (task == nullptr || !HasCommit(story, *task, commit)) {
      lost(fmt::format("{} step {} was committed by attempt {}, but no row says so", commit.task_id, commit.step,
                       commit.attempt));
    }
    // In the order of attempts.
    const auto [it, first] = by_step.emplace(std::pair(commit.task_id, commit.step), commit.attempt);
    if (!first && (task == nullptr || !WentBack(*task, commit.step, it->second, commit.attempt - 1))) {
      lost(fmt::format("{} step {} was committed twice, by attempts {} and {}", commit.task_id, commit.step, it->second,
                       commit.attempt));
    }
    it->second = commit.attempt;
  }
  for (const auto& [task_id, sha256] : acknowledged.completed) {
    const jobs::Task* task = FindTask(story, task_id);
    if (task == nullptr || task->state != jobs::TaskState::kSucceeded) {
      lost(fmt::format("{} was completed, but is {}", task_id, task == nullptr ? "gone" : ToString(task->state)));
    } else if (!sha256.empty() && (task->outputs.empty() || task->outputs[0].sha256 != sha256)) {
      lost(fmt::format("{} was completed with output {}, which is not what it has", task_id, sha256));
    }
  }
  return violations;
}

std::vector<Violation> CheckInvariants(const Checked& checked) {
  const absl::StatusOr<Story> story = ReadStoryOf(checked.store);
  if (!story.ok()) return {{"store", story.status().ToString()}};
  std::vector<Violation> violations = CheckRows(*story);
  const auto add = [&](const std::vector<Violation>& more) {
    violations.insert(violations.end(), more.begin(), more.end());
  };
  if (!checked.blobs.empty()) {
    const absl::StatusOr<std::unique_ptr<storage::BlobStore>> blobs = storage::BlobStore::Open(checked.blobs);
    if (!blobs.ok()) {
      violations.push_back({"files", blobs.status().ToString()});
      return violations;
    }
    add(CheckFiles(*story, blobs->get()));
    if (!checked.references.empty()) add(CheckWeights(*story, blobs->get(), checked.references));
  }
  if (checked.acknowledged != nullptr) add(CheckAcknowledged(*story, *checked.acknowledged));
  return violations;
}

}  // namespace atl::testing_invariants
