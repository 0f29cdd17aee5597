#include "atoll/job/v1/job_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands/commands.h"
#include "client/job_text.h"
#include "client/spec_file.h"
#include "client/watch_job.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "common/wire/spec_wire.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using atlpb::job::v1::JobService;
using atlpb::job::v1::SubmitJobRequest;
using atlpb::job::v1::SubmitJobResponse;

struct SubmitFlags {
  SpecFlags spec;
  std::string request_id;
  bool dry_run = false;
  bool wait = false;
};

absl::Status Submit(const Session& session, const SubmitFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const spec::JobSpec spec, ReadSpecFile(flags.spec));
  SubmitJobRequest request;
  wire::ToProto(spec, request.mutable_spec());
  request.set_request_id(flags.request_id.empty() ? NewRequestId() : flags.request_id);
  request.set_validate_only(flags.dry_run);
  ATOLL_ASSIGN_OR_RETURN(const SubmitJobResponse response,
                         CallCoordinator<JobService>(session, &JobService::Stub::SubmitJob, request));

  const bool json = session.format == OutputFormat::kJson;
  if (flags.dry_run) {
    if (json) {
      *session.out << ToJson(response.job());
    } else {
      *session.out << "valid; the job would be:\n\n" << spec::ToYaml(wire::FromProto(response.job().spec()));
      *session.out << fmt::format("\nwith {} tasks; nothing was stored\n", response.job().tasks_size());
    }
    return absl::OkStatus();
  }
  const std::string id = response.job().job_id();
  if (!flags.wait) {
    if (json) {
      *session.out << ToJson(response.job());
    } else {
      *session.out << id << "\n";
      *session.err << fmt::format("submitted; 'atoll jobs watch {}' shows its progress\n", id);
    }
    return absl::OkStatus();
  }
  if (!json) *session.out << "job " << id << " submitted" << std::endl;
  ATOLL_ASSIGN_OR_RETURN(const atlpb::job::v1::Job job, WatchJob(session, id));
  if (json) *session.out << ToJson(job);
  return JobOutcome(job);
}

}  // namespace

void AddSubmitCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<SubmitFlags>();
  CLI::App* command = app->add_subcommand("submit", "Submits a job: trains a model on a dataset");
  AddSpecFlags(command, &flags->spec);
  command->add_flag("--dry-run", flags->dry_run, "Runs every check and stores nothing");
  command->add_flag("--wait", flags->wait, "Shows progress until the job ends; exit code 10 unless it succeeded");
  command->add_option("--request-id", flags->request_id,
                      "Id of your own, a UUID for example: a repeated submit returns the first job");
  command->footer(R"(
Prints the job's id. A job goes on when this command ends; the coordinator keeps it through restarts.

Examples:
  atoll submit deploy/jobs/digits.yaml --wait
  atoll submit job.yaml --dry-run --set experts=8
  id=$(atoll submit job.yaml --set training.steps=2000 --set seed=1) && atoll jobs watch "$id"
)");
  command->callback([session, flags] { session->run = [session, flags] { return Submit(*session, *flags); }; });
}

}  // namespace atl::client
