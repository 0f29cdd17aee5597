#include "expert_server/expert_wire.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/network_wire.h"
#include "common/wire/status_proto.h"
#include "common/wire/tensor_wire.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::worker {

using atlpb::expert::v1::DenoiseRequest;
using atlpb::expert::v1::DenoiseResponse;

absl::StatusOr<DenoiseFrame> DecodeRequest(grpc::ByteBuffer* bytes) {
  DenoiseFrame frame;
  DenoiseRequest fields;
  router::Rows& rows = frame.evaluation.rows;
  const std::vector<wire::TensorTarget> tensors = {{DenoiseRequest::kXFieldNumber, &rows.x},
                                                   {DenoiseRequest::kEstimateFieldNumber, &rows.estimate}};
  ATOLL_RETURN_IF_ERROR(wire::DecodeWithTensors(bytes, &fields, tensors));
  frame.id = fields.id();
  frame.cancel = fields.cancel();
  if (fields.has_timeout()) frame.timeout = wire::FromProto(fields.timeout());
  frame.evaluation.network = wire::FromProto(fields.network());
  frame.evaluation.channels = fields.channels();
  frame.evaluation.height = fields.height();
  frame.evaluation.width = fields.width();
  frame.evaluation.reproducible = fields.reproducible();
  rows.count = fields.rows();
  rows.t.assign(fields.t().begin(), fields.t().end());
  rows.classes.assign(fields.classes().begin(), fields.classes().end());
  rows.null_classes.assign(fields.null_classes().begin(), fields.null_classes().end());
  return frame;
}

absl::Status CheckRows(const router::Evaluation& evaluation) {
  const router::Rows& rows = evaluation.rows;
  const auto mismatch = [](const std::string& what) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SHAPE_MISMATCH", what);
  };
  // A message holds no more, and products of what is smaller do not overflow.
  constexpr int64_t kMaxValues = rpc::kMaxMessageBytes / static_cast<int64_t>(sizeof(float));
  for (const int64_t size :
       {rows.count, int64_t{evaluation.channels}, int64_t{evaluation.height}, int64_t{evaluation.width}}) {
    if (size < 1 || size > kMaxValues) {
      return mismatch(fmt::format("expected rows of a shape, found {} of {}x{}x{}", rows.count, evaluation.channels,
                                  evaluation.height, evaluation.width));
    }
  }
  // The extents of a shape that overflows differ from any tensor's size, so they are multiplied one by one.
  int64_t values = rows.count;
  for (const int32_t extent : {evaluation.channels, evaluation.height, evaluation.width}) {
    values = values > kMaxValues ? values : values * extent;
  }
  if (static_cast<int64_t>(rows.x.size()) != values ||
      (!rows.estimate.empty() && rows.estimate.size() != rows.x.size())) {
    return mismatch(fmt::format("expected {} rows of {}x{}x{}, found {} values of x and {} of the estimate", rows.count,
                                evaluation.channels, evaluation.height, evaluation.width, rows.x.size(),
                                rows.estimate.size()));
  }
  const auto count = static_cast<size_t>(rows.count);
  if (rows.t.size() != count || rows.classes.size() != count ||
      (!rows.null_classes.empty() && rows.null_classes.size() != count)) {
    return mismatch(
        fmt::format("expected a time and a class for each of {} rows, found {} times, {} classes, {} null "
                    "classes",
                    count, rows.t.size(), rows.classes.size(), rows.null_classes.size()));
  }
  return absl::OkStatus();
}

grpc::ByteBuffer EncodeAnswer(int64_t id, absl::StatusOr<router::EvaluationAnswer> answer) {
  DenoiseResponse fields;
  fields.set_id(id);
  if (!answer.ok()) {
    *fields.mutable_error() = rpc::ToProto(answer.status());
    return wire::EncodeWithTensors(fields, {}, nullptr);
  }
  fields.set_fingerprint(answer->fingerprint);
  *fields.mutable_compute_time() = wire::ToProto(answer->compute_time);
  *fields.mutable_queue_time() = wire::ToProto(answer->queue_time);
  const auto values = std::make_shared<const std::vector<float>>(std::move(answer->values));
  const wire::TensorField tensor{DenoiseResponse::kValuesFieldNumber, *values};
  return wire::EncodeWithTensors(fields, std::span(&tensor, 1), values);
}

}  // namespace atl::worker
