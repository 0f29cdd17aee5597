#include "client/commands/commands.h"
#include "client/dataset_store.h"
#include "client/step_traces.h"
#include "client/table.h"
#include "client/watch_job.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

struct TraceFlags {
  std::string job;
  std::string task;
  std::optional<int64_t> step;
  std::string format = "text";
  std::string out;
};

std::string TextOf(const Session& session, const TraceFlags& flags, const TracedStep& step) {
  if (session.format == OutputFormat::kJson) return TraceJson(step);
  if (flags.format == "svg") return schedule::ToSvg(DrawTrace(step));
  if (flags.format == "chrome") return schedule::ToChromeTrace(DrawTrace(step));
  return DescribeTrace(step, flags.out.empty() ? session.width : 0);
}

absl::Status Trace(const Session& session, const TraceFlags& flags) {
  if (session.format == OutputFormat::kJson && flags.format != "text") {
    return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                     fmt::format("--format: expected none beside --output json, found '{}'", flags.format));
  }
  ATOLL_ASSIGN_OR_RETURN(const atlpb::job::v1::Job job, GetJob(session, flags.job));
  ATOLL_ASSIGN_OR_RETURN(const auto store, OpenExistingBlobStore(session));
  ATOLL_ASSIGN_OR_RETURN(const TracedStep step, ReadTracedStep(store.get(), job, flags.task, flags.step));
  const std::string text = TextOf(session, flags, step);
  if (flags.out.empty()) {
    *session.out << text;
    return absl::OkStatus();
  }
  ATOLL_RETURN_IF_ERROR(WriteFile(flags.out, text));
  *session.err << fmt::format("wrote {}: {}, step {}, {} {}\n", flags.out, OneLine(step.ranks.front().task_id),
                              step.ranks.front().step, step.ranks.size(), step.ranks.size() == 1 ? "rank" : "ranks");
  return absl::OkStatus();
}

}  // namespace

void AddTraceCommand(CLI::App* jobs, Session* session) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* command = jobs->add_subcommand("trace", "Draws what a training step really did, rank by rank");
  command->add_option("JOB", flags->job, "Job id, as printed by submit and jobs list")->required();
  command->add_option("--task", flags->task, "Task, such as train_expert-0; default: the first that left traces");
  command
      ->add_option("--step", flags->step,
                   "Step; default: the latest that left traces, with frozen components one before the last")
      ->check(WholeNumber<int64_t>(1));
  command->add_option("--format", flags->format, "text, svg, or chrome: a file for chrome://tracing or ui.perfetto.dev")
      ->check(CLI::IsMember({"text", "svg", "chrome"}))
      ->capture_default_str();
  command->add_option("--out", flags->out, "File, whose folder is made where it is missing; default: standard output");
  command->footer(R"(
Every rank of a training task records its third step and the steps before its checkpoints; the early one and the latest
eight are kept, until a day after the task has ended.

Examples:
  atoll jobs trace ID
  atoll jobs trace ID --format svg --out step.svg
  atoll jobs trace ID --task train_expert-2 --step 100 --format chrome --out step.json
)");
  command->callback([session, flags] { session->run = [session, flags] { return Trace(*session, *flags); }; });
}

}  // namespace atl::client
