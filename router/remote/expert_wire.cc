#include "router/remote/expert_wire.h"

#include <algorithm>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/network_wire.h"
#include "common/wire/status_proto.h"
#include "common/wire/tensor_wire.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

using atlpb::expert::v1::DenoiseRequest;
using atlpb::expert::v1::DenoiseResponse;

constexpr size_t kMaxTensorBytes = kMaxBatchValues * sizeof(float);

}  // namespace

absl::StatusOr<grpc::ByteBuffer> EncodeRequest(int64_t id, const std::shared_ptr<const Evaluation>& evaluation,
                                               absl::Duration timeout) {
  const Rows& rows = evaluation->rows;
  const size_t branches = evaluation->guided() ? 2 : 1;
  const size_t values = std::max(rows.x.size() + rows.estimate.size(), rows.x.size() * branches) * sizeof(float);
  if (values > kMaxTensorBytes) {
    return MakeError(absl::StatusCode::kInvalidArgument, "BATCH_TOO_LARGE",
                     fmt::format("expected a batch for an expert server of at most {} bytes, found {} rows of {}",
                                 kMaxTensorBytes, rows.count, values / std::max<int64_t>(1, rows.count)));
  }
  DenoiseRequest fields;
  fields.set_id(id);
  *fields.mutable_network() = wire::ToProto(evaluation->network);
  fields.set_rows(static_cast<int32_t>(rows.count));
  fields.set_channels(evaluation->channels);
  fields.set_height(evaluation->height);
  fields.set_width(evaluation->width);
  fields.mutable_t()->Add(rows.t.begin(), rows.t.end());
  fields.mutable_classes()->Add(rows.classes.begin(), rows.classes.end());
  fields.mutable_null_classes()->Add(rows.null_classes.begin(), rows.null_classes.end());
  fields.set_reproducible(evaluation->reproducible);
  if (timeout != absl::InfiniteDuration()) *fields.mutable_timeout() = wire::ToProto(timeout);
  const std::vector<wire::TensorField> tensors = {{DenoiseRequest::kXFieldNumber, rows.x},
                                                  {DenoiseRequest::kEstimateFieldNumber, rows.estimate}};
  return wire::EncodeWithTensors(fields, tensors, evaluation);
}

grpc::ByteBuffer EncodeCancel(int64_t id) {
  DenoiseRequest fields;
  fields.set_id(id);
  fields.set_cancel(true);
  return wire::EncodeWithTensors(fields, {}, nullptr);
}

absl::StatusOr<DenoiseAnswer> DecodeAnswer(grpc::ByteBuffer* bytes) {
  DenoiseResponse fields;
  EvaluationAnswer answer;
  const wire::TensorTarget tensor{DenoiseResponse::kValuesFieldNumber, &answer.values};
  ATOLL_RETURN_IF_ERROR(wire::DecodeWithTensors(bytes, &fields, std::span(&tensor, 1)));
  if (const absl::Status error = rpc::FromProto(fields.error()); !error.ok()) {
    return DenoiseAnswer{.id = fields.id(), .answer = error};
  }
  answer.fingerprint = fields.fingerprint();
  answer.compute_time = wire::FromProto(fields.compute_time());
  answer.queue_time = wire::FromProto(fields.queue_time());
  return DenoiseAnswer{.id = fields.id(), .answer = std::move(answer)};
}

std::vector<HostedNetwork> ReadyNetworks(const atlpb::expert::v1::ListNetworksResponse& hosting) {
  std::vector<HostedNetwork> ready;
  for (const atlpb::expert::v1::HostedNetwork& entry : hosting.networks()) {
    if (entry.state() != atlpb::expert::v1::HostedNetwork::STATE_READY) continue;
    ready.push_back({.id = wire::FromProto(entry.network()), .resident = true});
  }
  std::sort(ready.begin(), ready.end(), [](const HostedNetwork& a, const HostedNetwork& b) { return a.id < b.id; });
  return ready;
}

}  // namespace atl::router
