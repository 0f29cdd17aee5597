#include "client/job_text.h"

#include "client/table.h"
#include "common/wire/task_wire.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::client {

using atlpb::job::v1::Job;
using atlpb::job::v1::Rollback;
using atlpb::job::v1::Task;
using atlpb::job::v1::TaskError;

std::string StateName(Job::State state) {
  return EnumText(Job::State_Name(state));
}

std::string StateName(Task::State state) {
  return EnumText(Task::State_Name(state));
}

std::string KindName(atlpb::job::v1::TaskKind kind) {
  const auto known = wire::FromProto(kind);
  return known.ok() ? spec::ToString(*known) : "unknown";
}

std::string TaskName(const Task& task) {
  switch (task.kind()) {
    case atlpb::job::v1::TASK_KIND_TRAIN_EXPERT:
      return fmt::format("expert {}", task.index());
    case atlpb::job::v1::TASK_KIND_TRAIN_ROUTER:
      return "router";
    case atlpb::job::v1::TASK_KIND_FEATURIZE:
    case atlpb::job::v1::TASK_KIND_PARTITION:
      return fmt::format("{} {}", KindName(task.kind()), task.index());
    default:
      return KindName(task.kind());
  }
}

bool IsFinal(Job::State state) {
  return state == Job::STATE_SUCCEEDED || state == Job::STATE_FAILED || state == Job::STATE_CANCELLED;
}

std::string DescribeRollback(const Rollback& rollback) {
  std::string text = rollback.to_step() > 0 ? fmt::format("rolled back to step {}", rollback.to_step())
                                            : std::string("rolled back to its start");
  if (rollback.skipped_steps() > 0) text += fmt::format(", skipped {} steps", rollback.skipped_steps());
  if (!rollback.evidence_uri().empty()) text += ", evidence at " + OneLine(rollback.evidence_uri());
  return text + ": " + OneLine(rollback.message());
}

std::string DescribeJob(const Job& job, int width) {
  const absl::Time created = wire::FromProto(job.create_time());
  std::string text;
  text += fmt::format("job      {}\nstate    {}\nmodel    {}\ndataset  {}\nexperts  {}\n", OneLine(job.job_id()),
                      StateName(job.state()), OneLine(job.spec().model_name()), OneLine(job.spec().dataset()),
                      job.spec().experts());
  if (!job.owner().empty()) text += fmt::format("owner    {}\n", OneLine(job.owner()));
  text += fmt::format("created  {} UTC\n", TimeText(created));
  if (job.has_end_time()) {
    const absl::Time ended = wire::FromProto(job.end_time());
    text += fmt::format("ended    {} UTC, after {}\n", TimeText(ended), DurationText(ended - created));
  }
  if (!job.model_version().empty()) text += fmt::format("version  {}\n", OneLine(job.model_version()));
  if (!job.message().empty()) text += fmt::format("message  {}\n", OneLine(job.message()));
  if (job.tasks().empty()) return text;
  Table table({"TASK", "STATE", "ATTEMPT", "ISLAND", "STEP", "COMMITTED", "LOSS", "MESSAGE"});
  for (const Task& task : job.tasks()) {
    const bool steps = task.progress().total_steps() > 0;
    table.Add({TaskName(task), StateName(task.state()), fmt::format("{}", task.attempt()),
               task.island_id().empty() ? "-" : task.island_id(),
               steps ? fmt::format("{}/{}", task.progress().step(), task.progress().total_steps()) : "-",
               task.committed_step() > 0 ? fmt::format("{}", task.committed_step()) : "-",
               steps && task.progress().loss() != 0 ? fmt::format("{:.4f}", task.progress().loss()) : "-",
               OneLine(task.message())});
  }
  text += "\n" + table.Text(width);
  std::string notes;
  for (const Task& task : job.tasks()) {
    for (const Rollback& rollback : task.rollbacks()) {
      notes += fmt::format("{}, attempt {}: {}\n", TaskName(task), rollback.attempt(), DescribeRollback(rollback));
    }
    for (const TaskError& error : task.last_errors()) {
      notes += fmt::format("{}, attempt {} on island {}, {} UTC: {}: {}\n", TaskName(task), error.attempt(),
                           OneLine(error.island_id()), TimeText(wire::FromProto(error.time())), OneLine(error.code()),
                           OneLine(error.message()));
    }
  }
  return notes.empty() ? text : text + "\n" + notes;
}

}  // namespace atl::client
