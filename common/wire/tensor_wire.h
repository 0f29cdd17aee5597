// Messages with tensors in them, as gRPC's byte buffers: float32 fields of type bytes are written and read beside the
// generated code, so that no value is copied on its way out, and once, from gRPC's slices, on its way in. What is on
// the wire is plain protobuf.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace atl::wire {

// A field of type bytes; one without values is not written.
struct TensorField {
  int number = 0;
  std::span<const float> values;
};

// `fields` with the tensors behind it. The buffer refers to the tensors' memory, which `owner` keeps.
grpc::ByteBuffer EncodeWithTensors(const google::protobuf::MessageLite& fields, std::span<const TensorField> tensors,
                                   std::shared_ptr<const void> owner);

struct TensorTarget {
  int number = 0;
  std::vector<float>* values = nullptr;  // left as it is when the field is absent
};

// Takes the message apart again, whatever the order of its fields; `bytes` is empty after it. INVALID_ARGUMENT with
// reason MALFORMED_MESSAGE: no protobuf, or a tensor that does not consist of whole floats.
absl::Status DecodeWithTensors(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* fields,
                               std::span<const TensorTarget> tensors);

}  // namespace atl::wire
