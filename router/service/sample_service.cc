#include "router/service/sample_service.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "fmt/format.h"
#include "router/service/sample_stream.h"
#include "router/service/sample_wire.h"

namespace atl::router {

namespace pb = atlpb::sample::v1;

grpc::ServerWriteReactor<pb::SampleResponse>* SampleService::Sample(grpc::CallbackServerContext* context,
                                                                    const pb::SampleRequest* request) {
  const std::shared_ptr<SampleStream> stream = SampleStream::Create(context, &requests_, options_.max_write_time);
  const absl::StatusOr<SampleRequest> asked = FromProto(*request, engine_->options().limits);
  if (!asked.ok()) {
    stream->Refuse(asked.status());
    return stream.get();
  }
  absl::StatusOr<QuotaShare> share = TakeShare(*context, *asked);
  if (!share.ok()) {
    stream->Refuse(share.status());
    return stream.get();
  }
  stream->Keep(*share);
  stream->Register();
  absl::StatusOr<std::unique_ptr<SampleTicket>> ticket =
      engine_->Submit(*asked, clock_->Monotonic() + rpc::TimeLeft(*context), stream);
  if (ticket.ok()) {
    stream->Hold(*std::move(ticket));
  } else {
    share->Refund();
    stream->Refuse(WithPending(ticket.status()));
  }
  // gRPC calls OnDone, which gives up the stream's reference to itself, only after this has returned.
  return stream.get();
}

grpc::ServerUnaryReactor* SampleService::CancelSample(grpc::CallbackServerContext* context,
                                                      const pb::CancelSampleRequest* request,
                                                      pb::CancelSampleResponse* /*response*/) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(requests_.Cancel(request->request_id())));
  return reactor;
}

grpc::ServerUnaryReactor* SampleService::GetSamplerInfo(grpc::CallbackServerContext* context,
                                                        const pb::GetSamplerInfoRequest* request,
                                                        pb::GetSamplerInfoResponse* response) {
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

absl::StatusOr<QuotaShare> SampleService::TakeShare(const grpc::CallbackServerContext& call,
                                                    const SampleRequest& asked) {
  if (!options_.caller || options_.quotas == nullptr) return QuotaShare();
  ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, options_.caller(call));
  return options_.quotas->Take(
      caller.subject, static_cast<int64_t>(asked.classes.size()),
      {.in_flight = caller.quota.images_in_flight, .per_minute = caller.quota.images_per_minute}, clock_->Monotonic());
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
