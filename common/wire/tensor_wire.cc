#include "common/wire/tensor_wire.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace atl::wire {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

static_assert(std::endian::native == std::endian::little, "tensors are little endian on the wire, and are not swapped");

absl::Status Malformed(const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_MESSAGE", what);
}

grpc::Slice SliceOf(std::span<const float> values, const std::shared_ptr<const void>& owner) {
  // gRPC's slice owns a reference of its own.
  return grpc::Slice(
      const_cast<float*>(values.data()), values.size_bytes(),
      [](void* reference) { delete static_cast<std::shared_ptr<const void>*>(reference); },
      new std::shared_ptr<const void>(owner));
}

// Memory grows with what was read, never with what a length announces.
absl::Status ReadTensor(CodedInputStream* input, int number, std::vector<float>* values) {
  uint32_t bytes = 0;
  if (!input->ReadVarint32(&bytes)) return Malformed(fmt::format("field {}: found no length", number));
  if (bytes % sizeof(float) != 0) {
    return Malformed(fmt::format("field {}: expected whole floats, found {} bytes", number, bytes));
  }
  const int left = input->BytesUntilLimit();
  if (left >= 0 && bytes > static_cast<uint32_t>(left)) {
    return Malformed(fmt::format("field {}: expected {} bytes, found at most {}", number, bytes, left));
  }
  values->resize(bytes / sizeof(float));
  if (input->ReadRaw(values->data(), static_cast<int>(bytes))) return absl::OkStatus();
  return Malformed(fmt::format("field {}: expected {} bytes, found fewer", number, bytes));
}

}  // namespace

grpc::ByteBuffer EncodeWithTensors(const google::protobuf::MessageLite& fields, std::span<const TensorField> tensors,
                                   std::shared_ptr<const void> owner) {
  std::vector<grpc::Slice> slices;
  std::string head = fields.SerializeAsString();
  for (const TensorField& tensor : tensors) {
    if (tensor.values.empty()) continue;
    {
      StringOutputStream stream(&head);
      CodedOutputStream output(&stream);
      output.WriteTag(WireFormatLite::MakeTag(tensor.number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
      output.WriteVarint32(static_cast<uint32_t>(tensor.values.size_bytes()));
    }
    slices.emplace_back(head);
    slices.push_back(SliceOf(tensor.values, owner));
    head.clear();
  }
  if (!head.empty()) slices.emplace_back(head);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::Status DecodeWithTensors(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* fields,
                               std::span<const TensorTarget> tensors) {
  std::string head;
  {
    grpc::ProtoBufferReader reader(bytes);
    if (!reader.status().ok()) return Malformed(reader.status().error_message());
    CodedInputStream input(&reader);
    input.PushLimit(static_cast<int>(bytes->Length()));
    StringOutputStream stream(&head);
    CodedOutputStream output(&stream);
    while (const uint32_t tag = input.ReadTag()) {
      const auto target = std::find_if(tensors.begin(), tensors.end(), [&](const TensorTarget& tensor) {
        return WireFormatLite::MakeTag(tensor.number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED) == tag;
      });
      if (target == tensors.end()) {
        if (!WireFormatLite::SkipField(&input, tag, &output)) return Malformed("found a field that ends too early");
      } else if (const absl::Status read = ReadTensor(&input, target->number, target->values); !read.ok()) {
        return read;
      }
    }
    if (!input.ConsumedEntireMessage()) return Malformed("found bytes that are no field");
  }
  bytes->Clear();
  if (!fields->ParseFromString(head)) {
    return Malformed(fmt::format("expected a {}, found something else", fields->GetTypeName()));
  }
  return absl::OkStatus();
}

}  // namespace atl::wire
