#include "tests/scale/attempts.h"

#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "tests/scale/filled_store.h"

namespace atl::scale {

namespace pb = atlpb::job::v1;

absl::StatusOr<AttemptCounts> AttemptsOf(const std::string& address,
                                         const std::shared_ptr<grpc::ChannelCredentials>& credentials, int jobs) {
  const auto stub = pb::JobService::NewStub(rpc::MakeChannel(address, credentials));
  AttemptCounts counts;
  for (int job = 0; job < jobs; ++job) {
    pb::GetJobRequest request;
    request.set_job_id(JobIdAt(job));
    pb::GetJobResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(30), /*wait_for_ready=*/true);
    ATOLL_RETURN_IF_ERROR(rpc::FromGrpc(stub->GetJob(&context, request, &response)));
    for (const pb::Task& task : response.job().tasks()) {
      if (task.kind() != pb::TASK_KIND_TRAIN_EXPERT || task.attempt() == 0) continue;
      ++(task.attempt() == 1 && task.state() == pb::Task::STATE_LEASED ? counts.first_attempts : counts.other_attempts);
    }
  }
  return counts;
}

}  // namespace atl::scale
