// Denoise messages on the expert server's side: what comes in as a lane's batch, and what goes out.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "atoll/expert/v1/expert_service.pb.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/lane.h"

namespace atl::worker {

struct DenoiseFrame {
  int64_t id = 0;  // of the stream
  bool cancel = false;
  absl::Duration timeout = absl::InfiniteDuration();
  router::Evaluation evaluation;  // without id and deadline
};

// INVALID_ARGUMENT with reason MALFORMED_MESSAGE when it is no DenoiseRequest. `bytes` is empty after it.
absl::StatusOr<DenoiseFrame> DecodeRequest(grpc::ByteBuffer* bytes);

// INVALID_ARGUMENT with reason SHAPE_MISMATCH when lists and tensors do not fit the rows and the shape that go with
// them; whether they fit the network is the lane's to check.
absl::Status CheckRows(const router::Evaluation& evaluation);

grpc::ByteBuffer EncodeAnswer(int64_t id, absl::StatusOr<router::EvaluationAnswer> answer);

}  // namespace atl::worker
