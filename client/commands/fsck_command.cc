#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands/commands.h"
#include "client/dataset_store.h"
#include "client/fsck.h"
#include "client/job_text.h"
#include "client/table.h"
#include "common/base/errors.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "common/spec/frozen.h"
#include "common/wire/spec_wire.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using atlpb::job::v1::JobService;
using atlpb::model::v1::ModelService;
using fsck::BadFile;
using fsck::FsckOptions;
using fsck::FsckReport;
using fsck::NamedFile;

constexpr int kPage = 1000;

struct FsckFlags {
  bool offline = false;
  FsckOptions options;
};

// The encoder and the files of frozen components, which belong to the user: a job that is over needs them no more.
void AddFilesNamedBy(const atlpb::job::v1::Job& job, std::vector<NamedFile>* known) {
  if (IsFinal(job.state())) return;
  const spec::JobSpec spec = wire::FromProto(job.spec());
  std::vector<spec::FrozenFileField> files = spec::FrozenFileFields(spec.frozen);
  if (spec.features.kind == "torchscript") {
    files.push_back({"features.encoder_uri", spec.features.encoder_uri, spec.features.encoder_sha256});
  }
  for (const spec::FrozenFileField& file : files) {
    known->push_back({file.uri, file.sha256, fmt::format("job {}: {}", job.job_id(), file.field)});
  }
}

// Adds every output of every task, and the files that unfinished jobs name.
absl::Status AddOutputs(const Session& session, std::vector<NamedFile>* known) {
  ATOLL_ASSIGN_OR_RETURN(const Peer<JobService> peer, ConnectCoordinator<JobService>(session));
  atlpb::job::v1::ListJobsRequest request;
  request.set_page_size(kPage);
  do {
    atlpb::job::v1::ListJobsResponse page;
    ATOLL_RETURN_IF_ERROR(Call(session, peer, &JobService::Stub::ListJobs, request, &page));
    for (const auto& listed : page.jobs()) {
      atlpb::job::v1::GetJobRequest get;
      get.set_job_id(listed.job_id());
      atlpb::job::v1::GetJobResponse job;
      const absl::Status got = Call(session, peer, &JobService::Stub::GetJob, get, &job);
      if (absl::IsNotFound(got)) continue;  // deleted since it was listed
      ATOLL_RETURN_IF_ERROR(got);
      AddFilesNamedBy(job.job(), known);
      for (const auto& task : job.job().tasks()) {
        for (const auto& output : task.outputs()) {
          if (output.sha256().empty()) continue;
          known->push_back({output.uri(), output.sha256(), fmt::format("task {}: {}", task.task_id(), output.name())});
        }
      }
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

absl::Status AddModels(const Session& session, std::vector<NamedFile>* known) {
  ATOLL_ASSIGN_OR_RETURN(const Peer<ModelService> peer, ConnectCoordinator<ModelService>(session));
  atlpb::model::v1::ListModelsRequest request;
  request.set_page_size(kPage);
  do {
    atlpb::model::v1::ListModelsResponse page;
    ATOLL_RETURN_IF_ERROR(Call(session, peer, &ModelService::Stub::ListModels, request, &page));
    for (const auto& model : page.models()) {
      for (const auto& version : model.versions()) {
        if (version.digest().empty()) continue;
        known->push_back({fmt::format("{}/model_index.json", version.uri()), version.digest(),
                          fmt::format("model {}: version {}", model.name(), version.version())});
      }
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

absl::Status AskCoordinator(const Session& session, std::vector<NamedFile>* known) {
  ATOLL_RETURN_IF_ERROR(AddOutputs(session, known));
  return AddModels(session, known);
}

// Reading takes hours: what the coordinator named at the start and names no more was deleted meanwhile, and is not
// missing.
void DropDeleted(const Session& session, const std::vector<NamedFile>& known, FsckReport* report) {
  const auto missing = [](const BadFile& file) { return file.problem == BadFile::Problem::kMissing; };
  if (std::none_of(report->bad.begin(), report->bad.end(), missing)) return;
  std::vector<NamedFile> now;
  if (!AskCoordinator(session, &now).ok()) return;  // what was found is worth more than an error
  const auto names = [](const std::vector<NamedFile>& files) {
    std::set<std::pair<std::string, std::string>> all;
    for (const NamedFile& file : files) all.emplace(file.uri, file.named_by);
    return all;
  };
  const std::set<std::pair<std::string, std::string>> before = names(known);
  const std::set<std::pair<std::string, std::string>> after = names(now);
  std::erase_if(report->bad, [&](const BadFile& file) {
    const std::pair name(file.uri, file.named_by);
    return missing(file) && before.contains(name) && !after.contains(name);
  });
}

// `empty`: whether nothing at all lies in the store.
void Print(const Session& session, const std::string& root, const FsckReport& report, bool empty) {
  if (session.format == OutputFormat::kJson) {
    nlohmann::ordered_json bad = nlohmann::ordered_json::array();
    for (const BadFile& file : report.bad) {
      bad.push_back({{"uri", file.uri},
                     {"problem", ToString(file.problem)},
                     {"detail", file.detail},
                     {"named_by", file.named_by}});
    }
    const nlohmann::ordered_json json = {{"blob_store", root},
                                         {"files", report.files},
                                         {"bytes", report.bytes},
                                         {"unnamed_files", report.unnamed_files},
                                         {"unnamed_bytes", report.unnamed_bytes},
                                         {"bad", bad}};
    *session.out << json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
    return;
  }
  for (const BadFile& file : report.bad) {
    *session.out << fmt::format("{} {}: {}{}\n", ToString(file.problem), OneLine(file.uri), OneLine(file.detail),
                                file.named_by.empty() ? "" : fmt::format(" (named by {})", OneLine(file.named_by)));
  }
  *session.out << fmt::format("{}: {} files of {} bytes checked, {} bad; nothing names {} files of {} bytes{}\n", root,
                              report.files, report.bytes, report.bad.size(), report.unnamed_files, report.unnamed_bytes,
                              empty ? ": the store is empty" : "");
}

absl::Status Fsck(const Session& session, const FsckFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<storage::BlobStore> store, OpenExistingBlobStore(session));
  FsckOptions options = flags.options;
  if (!flags.offline) ATOLL_RETURN_IF_ERROR(AskCoordinator(session, &options.known));
  ATOLL_ASSIGN_OR_RETURN(FsckReport report, fsck::CheckBlobStore(store.get(), options));
  if (!flags.offline) DropDeleted(session, options.known, &report);
  const bool empty = options.below.empty() && report.files == 0 && report.unnamed_files == 0;
  Print(session, store->root(), report, empty);
  if (report.bad.empty()) return absl::OkStatus();
  const bool lost = std::any_of(report.bad.begin(), report.bad.end(),
                                [](const BadFile& file) { return file.problem != BadFile::Problem::kUnreadable; });
  if (!lost) {
    return MakeError(
        absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE",
        fmt::format("{}: {} of {} files could not be read", store->root(), report.bad.size(), report.files));
  }
  return MakeError(
      absl::StatusCode::kDataLoss, "STORE_NOT_WHOLE",
      fmt::format("{}: expected {} whole files, found {} bad", store->root(), report.files, report.bad.size()));
}

}  // namespace

void AddFsckCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<FsckFlags>();
  CLI::App* command =
      app->add_subcommand("fsck", "Reads the whole blob store and says which files are missing or damaged");
  command->add_flag("--offline", flags->offline,
                    "Do not ask the coordinator: check only what manifests in the store name");
  command->add_option("--below", flags->options.below,
                      "Only files below this folder of the store, e.g. datasets/digits/, or this file; may be "
                      "repeated; an error where there are none");
  command->add_option("--threads", flags->options.threads, "Files that are read at a time")
      ->check(WholeNumber<int>(1, 64))
      ->capture_default_str();
  command->callback([=] { session->run = [=] { return Fsck(*session, *flags); }; });
  command->footer(R"(
One line per bad file: whether it is missing, damaged or unreadable, its hash, and what names it. Nothing is changed.
Exit code 8 where a file is missing or damaged. docs/operations.md says what to do then.

Examples:
  atoll fsck
  atoll --blob-store s3://bucket/atoll fsck --offline --below models/ --output json
)");
}

}  // namespace atl::client
