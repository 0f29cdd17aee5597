// Denoise messages on the router's side: encodes a lane's batch, and decodes the answer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "atoll/expert/v1/expert_service.pb.h"
#include "common/rpc/channel.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/lane.h"

namespace atl::router {

// Limit on the values in one message's tensors. The remaining bytes are for the rest: some 25 bytes a row, and names.
inline constexpr int64_t kMaxBatchValues = (rpc::kMaxMessageBytes - (1 << 20)) / static_cast<int64_t>(sizeof(float));

// `id` is the stream's number of the batch; `timeout` is the time left until the evaluation's deadline. The buffer
// refers to the evaluation's rows and keeps them alive. INVALID_ARGUMENT (BATCH_TOO_LARGE) when the batch or its answer
// is larger than a message may be.
absl::StatusOr<grpc::ByteBuffer> EncodeRequest(int64_t id, const std::shared_ptr<const Evaluation>& evaluation,
                                               absl::Duration timeout);
grpc::ByteBuffer EncodeCancel(int64_t id);

struct DenoiseAnswer {
  int64_t id = 0;
  absl::StatusOr<EvaluationAnswer> answer;
};

// INVALID_ARGUMENT (MALFORMED_MESSAGE) when the bytes are no DenoiseResponse. `bytes` is empty afterwards.
absl::StatusOr<DenoiseAnswer> DecodeAnswer(grpc::ByteBuffer* bytes);

// Returns the networks that are ready, ascending.
std::vector<HostedNetwork> ReadyNetworks(const atlpb::expert::v1::ListNetworksResponse& hosting);

}  // namespace atl::router
