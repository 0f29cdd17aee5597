// Messages with tensors as gRPC byte buffers. float32 fields of type bytes are written and read outside the generated
// code: values are not copied on the way out, and copied once, from gRPC's slices, on the way in. The bytes on the wire
// are plain protobuf.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

namespace atl::wire {

// A field of type bytes; an empty one is not written.
struct TensorField {
  int number = 0;
  std::span<const float> values;
};

// Returns `fields` with the tensors behind it. The buffer refers to the tensors' memory, which `owner` keeps alive.
grpc::ByteBuffer EncodeWithTensors(const google::protobuf::MessageLite& fields, std::span<const TensorField> tensors,
                                   std::shared_ptr<const void> owner);

struct TensorTarget {
  int number = 0;
  std::vector<float>* values = nullptr;  // unchanged if the field is absent
};

// Splits the message into fields and tensors, in any order of its fields; `bytes` is empty afterwards. INVALID_ARGUMENT
// with reason MALFORMED_MESSAGE: no protobuf, or a tensor that does not consist of whole floats.
absl::Status DecodeWithTensors(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* fields,
                               std::span<const TensorTarget> tensors);

}  // namespace atl::wire
