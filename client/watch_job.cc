#include "client/watch_job.h"

#include "absl/time/clock.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "client/calls.h"
#include "client/job_text.h"
#include "client/watch_view.h"
#include "common/base/backoff.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::JobService;
using atlpb::job::v1::WatchJobRequest;
using atlpb::job::v1::WatchJobResponse;

constexpr absl::Duration kStreamTime = absl::Hours(1);
constexpr absl::Duration kPatience = absl::Minutes(10);

// One stream, from `job`'s revision on, until it breaks or the job ends.
absl::Status FollowOnce(JobService::Stub* stub, const std::string& job_id, Job* job,
                        const std::function<void(const Job&)>& show) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, kStreamTime);
  WatchJobRequest request;
  request.set_job_id(job_id);
  request.set_after_revision(job->revision());
  const auto stream = stub->WatchJob(&context, request);
  WatchJobResponse response;
  while (stream->Read(&response)) {
    *job = response.job();
    show(*job);
    if (IsFinal(job->state())) context.TryCancel();
  }
  return rpc::FromGrpc(stream->Finish());
}

// Whether a new stream may continue where this one ended.
bool MayReconnect(const absl::Status& status) {
  return status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

}  // namespace

absl::StatusOr<Job> GetJob(const Session& session, const std::string& job_id) {
  atlpb::job::v1::GetJobRequest request;
  request.set_job_id(job_id);
  ATOLL_ASSIGN_OR_RETURN(const auto response, CallCoordinator<JobService>(session, &JobService::Stub::GetJob, request));
  return response.job();
}

absl::StatusOr<Job> WatchJob(const Session& session, const std::string& job_id) {
  ATOLL_ASSIGN_OR_RETURN(const Peer<JobService> peer, ConnectCoordinator<JobService>(session));
  const bool json = session.format == OutputFormat::kJson;
  WatchView view(json ? session.err : session.out, session.terminal && !json, session.width, session.colour);
  Job job;
  absl::Time last_answer = absl::Now();
  Backoff backoff({.first = absl::Milliseconds(200), .longest = absl::Seconds(5)});
  const auto show = [&](const Job& now) {
    last_answer = absl::Now();
    backoff.Reset();
    view.Show(now, last_answer);
  };
  while (true) {
    const absl::Status status = FollowOnce(peer.stub.get(), job_id, &job, show);
    if (IsFinal(job.state())) return job;
    if (!MayReconnect(status)) return ExplainCall(status, peer.what, kStreamTime);
    if (!status.ok() && absl::Now() - last_answer > kPatience) return ExplainCall(status, peer.what, kStreamTime);
    if (absl::IsUnavailable(status) && backoff.failures() == 0) view.Note(peer.what + " is away; waiting for it");
    absl::SleepFor(backoff.Next());
  }
}

absl::Status JobOutcome(const Job& job) {
  if (job.state() == Job::STATE_SUCCEEDED) return absl::OkStatus();
  // Its message was shown with the state.
  return MakeError(absl::StatusCode::kFailedPrecondition, "JOB_FAILED",
                   fmt::format("job {} {}", job.job_id(), StateName(job.state())));
}

}  // namespace atl::client
