#include "coordinator/service/job_service.h"

#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/cut_text.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "common/wire/spec_wire.h"
#include "coordinator/blobs/dataset_lookup.h"
#include "coordinator/blobs/job_files.h"
#include "coordinator/service/messages.h"
#include "coordinator/service/watch.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

namespace job_pb = atlpb::job::v1;

constexpr size_t kLongestReason = 1024;

absl::StatusOr<CallKey> KeyOfSubmission(const ServiceContext& context, const grpc::CallbackServerContext& call,
                                        const job_pb::SubmitJobRequest& request) {
  ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, CallerOf(context, call));
  ATOLL_RETURN_IF_ERROR(rpc::CheckModel(caller, request.spec().model_name()));
  return KeyOf(context, call, "SubmitJob", request);
}

template <typename Response>
std::string EncodeJobAs(const JobView& view) {
  Response response;
  *response.mutable_job() = JobToProto(view);
  return response.SerializeAsString();
}

// Reads a job's inputs from the blob store: its dataset, and the files that it names, whose hashes it fills in. Rejects
// a spec that no dataset can make valid before it reads; reads large files last.
absl::StatusOr<DatasetInfo> LookUpInputs(storage::BlobStore& blobs, const std::function<bool()>& go_on,
                                         spec::JobSpec* spec) {
  ATOLL_RETURN_IF_ERROR(spec::Validate(*spec, nullptr));
  ATOLL_ASSIGN_OR_RETURN(DatasetInfo dataset, LookUpDataset(blobs, spec->dataset));
  ATOLL_RETURN_IF_ERROR(spec::Validate(*spec, &dataset.facts));
  ATOLL_RETURN_IF_ERROR(FillFileHashes(blobs, go_on, spec));
  // A spec that is too large to be read again would prevent the coordinator's next start.
  ATOLL_RETURN_IF_ERROR(spec::ParseStoredJobSpec(spec::ToJson(*spec), "the spec, as JSON").status());
  return dataset;
}

// The position in a list of jobs that a token stands for.
absl::StatusOr<int64_t> JobsBefore(const std::string& token) {
  int64_t before = 0;
  if (token.empty() || absl::SimpleAtoi(token, &before)) return before;
  return FieldError("page_token", "INVALID_PAGE_TOKEN", "expected a next_page_token of ListJobs");
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::SubmitJob(grpc::CallbackServerContext* call,
                                                    const job_pb::SubmitJobRequest* request,
                                                    job_pb::SubmitJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  auto timer = std::make_shared<CallTimer>(context_, *call, "SubmitJob");
  const auto finish = [reactor, timer, request, response](const absl::Status& status) {
    // Where there is no job, its caller may not have the model, or cannot.
    const std::string& job_id = response->job().job_id();
    if (!request->validate_only()) timer->Changes(job_id.empty() ? request->spec().model_name() : job_id);
    timer->End(status);
    reactor->Finish(rpc::ToGrpc(status));
  };
  const absl::StatusOr<CallKey> key = KeyOfSubmission(context_, *call, *request);
  if (!key.ok()) {
    finish(key.status());
    return reactor;
  }
  const bool posted = blob_thread_.Post([this, call, finish, key = *key, request, response] {
    const auto go_on = [call] { return !call->IsCancelled(); };
    spec::JobSpec spec = wire::FromProto(request->spec());
    const absl::StatusOr<DatasetInfo> dataset = LookUpInputs(blobs_, go_on, &spec);
    if (!dataset.ok()) return finish(dataset.status());
    const auto submit = [this, finish, key, spec, dataset = *dataset, request, response] {
      finish(Decode(context_.core->SubmitJob(key, spec, dataset, request->validate_only(),
                                             EncodeJobAs<job_pb::SubmitJobResponse>),
                    response));
    };
    if (!context_.core_thread->Post(submit)) finish(Busy());
  });
  if (!posted) finish(Busy());
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::GetJob(grpc::CallbackServerContext* call,
                                                 const job_pb::GetJobRequest* request,
                                                 job_pb::GetJobResponse* response) {
  return Serve(context_, call, "GetJob", [request, response](Core& core) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const JobView view, core.GetJob(request->job_id()));
    *response->mutable_job() = JobToProto(view);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(grpc::CallbackServerContext* call,
                                                   const job_pb::ListJobsRequest* request,
                                                   job_pb::ListJobsResponse* response) {
  return Serve(context_, call, "ListJobs", [request, response](Core& core) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const int32_t size, PageSize(request->page_size()));
    ATOLL_ASSIGN_OR_RETURN(const int64_t before, JobsBefore(request->page_token()));
    ATOLL_ASSIGN_OR_RETURN(const store::Store::JobPage page, core.ListJobs(before, size));
    for (const jobs::Job& job : page.jobs) *response->add_jobs() = JobToProto(job);
    if (page.next != 0) response->set_next_page_token(std::to_string(page.next));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::CancelJob(grpc::CallbackServerContext* call,
                                                    const job_pb::CancelJobRequest* request,
                                                    job_pb::CancelJobResponse* response) {
  return ServeChange(context_, call, {"CancelJob", request->job_id()}, request, response,
                     [request](Core& core, const CallKey& key) {
                       return core.CancelJob(key, request->job_id(), CutText(request->reason(), kLongestReason),
                                             EncodeJobAs<job_pb::CancelJobResponse>);
                     });
}

grpc::ServerUnaryReactor* JobServiceImpl::DeleteJob(grpc::CallbackServerContext* call,
                                                    const job_pb::DeleteJobRequest* request,
                                                    job_pb::DeleteJobResponse* response) {
  return ServeChange(context_, call, {"DeleteJob", request->job_id()}, request, response,
                     [request](Core& core, const CallKey& key) -> absl::StatusOr<std::string> {
                       ATOLL_RETURN_IF_ERROR(core.DeleteJob(key, request->job_id()));
                       return "";
                     });
}

grpc::ServerWriteReactor<job_pb::WatchJobResponse>* JobServiceImpl::WatchJob(grpc::CallbackServerContext* call,
                                                                             const job_pb::WatchJobRequest* request) {
  // Copied: the request is gone once this returned.
  const std::string job_id = request->job_id();
  const int64_t after = request->after_revision();
  Core* const core = context_.core;
  const auto begin = [core, job_id, after](const std::shared_ptr<StreamWriter<job_pb::WatchJobResponse>>& writer) {
    return core->WatchJob(job_id, after, [writer](const absl::StatusOr<JobView>& view, bool last) {
      if (view.ok()) {
        job_pb::WatchJobResponse message;
        *message.mutable_job() = JobToProto(*view);
        writer->Send("", std::move(message));
      }
      if (last) writer->End(rpc::ToGrpc(view.status()));
    });
  };
  return ServeWatch<job_pb::WatchJobResponse>(context_, call, "WatchJob", begin,
                                              [core](int64_t ticket) { core->CancelWatch(ticket); });
}

}  // namespace atl::coordinator
