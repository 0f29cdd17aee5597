#include "router/service/sample_service.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "router/service/sample_wire.h"

namespace atl::router {

namespace sample_pb = atlpb::sample::v1;

grpc::ServerWriteReactor<sample_pb::SampleResponse>* SampleService::Sample(grpc::CallbackServerContext* context,
                                                                           const sample_pb::SampleRequest* request) {
  const std::shared_ptr<SampleStream> stream = SampleStream::Create(&requests_);
  if (const absl::Status status = Submit(*context, *request, stream); !status.ok()) stream->Refuse(status);
  // gRPC calls OnDone, which gives up the stream's reference to itself, only after this has returned.
  return stream.get();
}

absl::Status SampleService::Submit(const grpc::CallbackServerContext& call, const sample_pb::SampleRequest& request,
                                   const std::shared_ptr<SampleStream>& stream) {
  ATOLL_ASSIGN_OR_RETURN(const SampleRequest asked, FromProto(request, engine_->options().limits));
  rpc::Principal caller;
  if (options_.caller) {
    ATOLL_ASSIGN_OR_RETURN(caller, options_.caller(call));
  }
  const auto images = static_cast<int64_t>(asked.classes.size());
  const ImageQuota quota{.in_flight = caller.quota.images_in_flight, .per_minute = caller.quota.images_per_minute};
  if (options_.quotas != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(CallerQuotas::Share share,
                           options_.quotas->Take(caller.subject, images, quota, clock_->Monotonic()));
    stream->Keep(std::move(share));
  }
  stream->Register();
  auto ticket = engine_->Submit(asked, clock_->Monotonic() + rpc::TimeLeft(call), stream);
  if (!ticket.ok()) {
    if (options_.quotas != nullptr) options_.quotas->Refund(caller.subject, images, quota);
    return WithPending(ticket.status());
  }
  stream->Hold(*std::move(ticket));
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* SampleService::CancelSample(grpc::CallbackServerContext* context,
                                                      const sample_pb::CancelSampleRequest* request,
                                                      sample_pb::CancelSampleResponse* /*response*/) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(requests_.Cancel(request->request_id())));
  return reactor;
}

grpc::ServerUnaryReactor* SampleService::GetSamplerInfo(grpc::CallbackServerContext* context,
                                                        const sample_pb::GetSamplerInfoRequest* request,
                                                        sample_pb::GetSamplerInfoResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::StatusOr<SamplerInfo> info = engine_->Info(request->model());
  if (info.ok()) {
    *response = ToProto(*info, engine_->options().limits);
    for (std::string& version : engine_->Versions(request->model())) response->add_versions(std::move(version));
    if (options_.versions) AddVersions(options_.versions(), response);
  }
  reactor->Finish(ToGrpcWithRetry(WithPending(info.status())));
  return reactor;
}

absl::Status SampleService::WithPending(const absl::Status& status) const {
  const std::string reason = ErrorReason(status);
  if ((reason != "NO_MODEL" && reason != "MODEL_LOADING") || !options_.versions) return status;
  std::string pending;
  for (const FollowedVersion& version : options_.versions().versions) {
    if (version.waits_for.empty()) continue;
    pending += fmt::format("; model '{}' version '{}': {}", version.model, version.version, version.waits_for);
  }
  if (pending.empty()) return status;
  return MakeErrorWithField(status.code(), reason, ErrorField(status), std::string(status.message()) + pending);
}

}  // namespace atl::router
