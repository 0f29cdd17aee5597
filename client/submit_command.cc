#include <iterator>

#include "atoll/job/v1/job_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands.h"
#include "client/dataset_store.h"
#include "client/job_text.h"
#include "client/spec_file.h"
#include "client/watch_job.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/spec/frozen.h"
#include "common/spec/spec_io.h"
#include "common/wire/spec_wire.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using atlpb::job::v1::JobService;
using atlpb::job::v1::SubmitJobRequest;
using atlpb::job::v1::SubmitJobResponse;

struct SubmitFlags {
  std::string file;
  std::vector<std::string> set;
  std::string request_id;
  bool dry_run = false;
  bool wait = false;
};

// Files that the coordinator could not read either, said here with the job file's name. Where this machine knows no
// blob store, or cannot reach it, the coordinator finds out.
absl::Status CheckFrozenFiles(const Session& session, const spec::JobSpec& spec) {
  const std::vector<spec::FrozenFileField> files = spec::FrozenFileFields(spec.frozen);
  if (files.empty()) return absl::OkStatus();
  const auto store = OpenBlobStore(session);
  if (!store.ok()) return absl::OkStatus();
  for (const auto& [field, uri, sha256] : files) {
    const absl::StatusOr<bool> exists = (*store)->Exists(uri);
    if (exists.ok() ? *exists : !absl::IsInvalidArgument(exists.status())) continue;
    return FieldError(field, "JOB_FILE",
                      exists.ok()
                          ? "expected a file, found none at " + uri
                          : fmt::format("expected a file below the blob store {}, found {}", (*store)->root(), uri));
  }
  return absl::OkStatus();
}

absl::Status Submit(const Session& session, const SubmitFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const spec::JobSpec spec, ReadSpecFile(flags.file, flags.set));
  ATOLL_RETURN_IF_ERROR(WithContext(spec::Validate(spec, nullptr), flags.file));
  ATOLL_RETURN_IF_ERROR(WithContext(CheckFrozenFiles(session, spec), flags.file));
  ATOLL_ASSIGN_OR_RETURN(const Peer<JobService> peer, ConnectCoordinator<JobService>(session));
  SubmitJobRequest request;
  wire::ToProto(spec, request.mutable_spec());
  request.set_request_id(flags.request_id.empty() ? NewRequestId() : flags.request_id);
  request.set_validate_only(flags.dry_run);
  SubmitJobResponse response;
  ATOLL_RETURN_IF_ERROR(Call(session, peer, &JobService::Stub::SubmitJob, request, &response));

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
  command->add_option("FILE", flags->file, "Job spec in YAML; - for standard input")->required();
  command->add_option("--set", flags->set, "Replaces one field, e.g. --set training.steps=1000; repeatable")
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
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
