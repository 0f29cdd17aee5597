// Denoise messages on the expert server's side: decodes requests into batches for lanes, and encodes answers.
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

// Returns INVALID_ARGUMENT with reason MALFORMED_MESSAGE if `bytes` is not a DenoiseRequest. Empties `bytes`.
absl::StatusOr<DenoiseFrame> DecodeRequest(grpc::ByteBuffer* bytes);

// Returns INVALID_ARGUMENT with reason SHAPE_MISMATCH if lists and tensors do not fit the rows and the shape of the
// evaluation. The lane checks whether they fit the network.
absl::Status CheckRows(const router::Evaluation& evaluation);

grpc::ByteBuffer EncodeAnswer(int64_t id, absl::StatusOr<router::EvaluationAnswer> answer);

}  // namespace atl::worker
