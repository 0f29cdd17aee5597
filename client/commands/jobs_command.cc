#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands/commands.h"
#include "client/job_text.h"
#include "client/table.h"
#include "client/watch_job.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using namespace atlpb::job::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

struct JobsFlags {
  std::string id;
  std::string reason;
  int limit = 50;
  std::string task_id;
  std::string to_island;
};

absl::Status List(const Session& session, const JobsFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Peer<JobService> peer, ConnectCoordinator<JobService>(session));
  ListJobsResponse all;
  std::string token;
  do {
    constexpr int kLargestPage = 1000;
    ListJobsRequest request;
    request.set_page_size(std::min(flags.limit - all.jobs_size(), kLargestPage));
    request.set_page_token(token);
    ListJobsResponse page;
    ATOLL_RETURN_IF_ERROR(Call(session, peer, &JobService::Stub::ListJobs, request, &page));
    for (Job& job : *page.mutable_jobs()) *all.add_jobs() = std::move(job);
    token = page.next_page_token();
  } while (!token.empty() && all.jobs_size() < flags.limit);
  if (session.format == OutputFormat::kJson) {
    *session.out << ToJson(all);
    return absl::OkStatus();
  }
  Table table({"JOB", "STATE", "MODEL", "DATASET", "EXPERTS", "CREATED", "MESSAGE"});
  for (const Job& job : all.jobs()) {
    table.Add({job.job_id(), StateName(job.state()), job.spec().model_name(), job.spec().dataset(),
               fmt::format("{}", job.spec().experts()), TimeText(wire::FromProto(job.create_time())),
               OneLine(job.message())});
  }
  *session.out << table.Text(session.width);
  return absl::OkStatus();
}

void Print(const Session& session, const Job& job) {
  *session.out << (session.format == OutputFormat::kJson ? ToJson(job) : DescribeJob(job, session.width));
}

absl::Status Get(const Session& session, const JobsFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Job job, GetJob(session, flags.id));
  Print(session, job);
  return absl::OkStatus();
}

absl::Status Watch(const Session& session, const JobsFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Job job, WatchJob(session, flags.id));
  if (session.format == OutputFormat::kJson) *session.out << ToJson(job);
  return JobOutcome(job);
}

absl::Status Cancel(const Session& session, const JobsFlags& flags) {
  CancelJobRequest request;
  request.set_job_id(flags.id);
  request.set_reason(flags.reason);
  request.set_request_id(NewRequestId());
  ATOLL_ASSIGN_OR_RETURN(const CancelJobResponse response,
                         CallCoordinator<JobService>(session, &JobService::Stub::CancelJob, request));
  Print(session, response.job());
  return absl::OkStatus();
}

absl::Status Delete(const Session& session, const JobsFlags& flags) {
  DeleteJobRequest request;
  request.set_job_id(flags.id);
  request.set_request_id(NewRequestId());
  ATOLL_ASSIGN_OR_RETURN(const DeleteJobResponse response,
                         CallCoordinator<JobService>(session, &JobService::Stub::DeleteJob, request));
  if (session.format == OutputFormat::kJson) {
    *session.out << ToJson(response);
  } else {
    *session.out << "deleted " << flags.id << "\n";
  }
  return absl::OkStatus();
}

absl::Status Move(const Session& session, const JobsFlags& flags) {
  using atlpb::admin::v1::AdminService;
  atlpb::admin::v1::MoveTaskRequest request;
  request.set_task_id(flags.task_id);
  request.set_to_island_id(flags.to_island);
  request.set_request_id(NewRequestId());
  ATOLL_ASSIGN_OR_RETURN(const auto response,
                         CallCoordinator<AdminService>(session, &AdminService::Stub::MoveTask, request));
  if (session.format == OutputFormat::kJson) {
    *session.out << ToJson(response.task());
    return absl::OkStatus();
  }
  const std::string to = flags.to_island.empty() ? "another island" : "island " + flags.to_island;
  if (response.task().state() == Task::STATE_LEASED) {
    *session.out << fmt::format("island {} gives back {} with a checkpoint; for ten minutes it is kept for {}\n",
                                OneLine(response.task().island_id()), flags.task_id, to);
  } else {
    *session.out << fmt::format("{} is kept for {} for ten minutes\n", flags.task_id, to);
  }
  return absl::OkStatus();
}

using Action = absl::Status (*)(const Session&, const JobsFlags&);

CLI::App* AddAction(CLI::App* parent, Session* session, const std::shared_ptr<JobsFlags>& flags, const char* name,
                    const char* description, Action action, bool takes_id) {
  CLI::App* command = parent->add_subcommand(name, description);
  if (takes_id) command->add_option("JOB", flags->id, "Job id, as printed by submit and jobs list")->required();
  command->callback([=] { session->run = [=] { return action(*session, *flags); }; });
  return command;
}

}  // namespace

void AddJobsCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<JobsFlags>();
  CLI::App* jobs = app->add_subcommand("jobs", "Lists, shows, watches, traces, moves, cancels and deletes jobs");
  jobs->require_subcommand(1);
  AddAction(jobs, session, flags, "list", "Jobs, newest first", List, false)
      ->add_option("--limit", flags->limit, "At most this many")
      ->check(WholeNumber(1, 1'000'000))
      ->capture_default_str();
  AddAction(jobs, session, flags, "get", "One job with its tasks", Get, true);
  AddAction(jobs, session, flags, "watch", "Shows progress until the job ends; goes on when the coordinator restarts",
            Watch, true)
      ->footer(
          "\nBars on a terminal, lines elsewhere. Exit code 10 unless the job succeeded. Ctrl-C stops the watching, "
          "not the job.\n");
  AddAction(jobs, session, flags, "cancel", "Ends a job; what it published stays", Cancel, true)
      ->add_option("--reason", flags->reason, "Kept with the job, for people");
  AddAction(jobs, session, flags, "delete", "Forgets a job that has ended", Delete, true);
  CLI::App* move = AddAction(jobs, session, flags, "move",
                             "Has a task go on elsewhere, from a checkpoint that its island leaves", Move, false);
  move->add_option("TASK", flags->task_id, "Task id, as printed by islands list")->required();
  move->add_option("--to", flags->to_island, "Island that is to go on with it (default: any other one)");
  AddTraceCommand(jobs, session);
  jobs->footer(R"(
Examples:
  atoll jobs list
  atoll jobs get ID --output json
  atoll jobs watch ID
  atoll jobs trace ID
  atoll jobs move ID/train_expert-0 --to eu-3
  atoll jobs cancel ID --reason "wrong dataset"
)");
}

}  // namespace atl::client
