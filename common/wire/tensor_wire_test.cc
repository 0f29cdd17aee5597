#include "common/wire/tensor_wire.h"

#include <cstring>
#include <numeric>
#include <string>

#include "atoll/expert/v1/expert_service.pb.h"
#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::wire {
namespace {

using atlpb::expert::v1::DenoiseRequest;

std::string Text(const grpc::ByteBuffer& bytes) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(bytes.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

// In slices of `piece` bytes, as a network delivers them.
grpc::ByteBuffer InPieces(const std::string& text, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t from = 0; from < text.size(); from += piece) slices.emplace_back(text.substr(from, piece));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string BytesOf(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

DenoiseRequest SomeFields() {
  DenoiseRequest fields;
  fields.set_id(77);
  fields.mutable_network()->set_model("tiny");
  fields.mutable_network()->set_expert(-1);
  fields.add_t(0.5f);
  fields.add_classes(3);
  return fields;
}

std::vector<float> Counting(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), -3.5f);
  return values;
}

TEST(TensorWire, GeneratedCodeReadsWhatWasWrittenBesideIt) {
  auto x = std::make_shared<const std::vector<float>>(Counting(100));
  const std::vector<TensorField> tensors = {{DenoiseRequest::kXFieldNumber, *x},
                                            {DenoiseRequest::kEstimateFieldNumber, std::span(*x).first(7)}};
  DenoiseRequest read;
  ASSERT_TRUE(read.ParseFromString(Text(EncodeWithTensors(SomeFields(), tensors, x))));
  EXPECT_EQ(read.x(), BytesOf(*x));
  EXPECT_EQ(read.estimate(), BytesOf(std::vector<float>(x->begin(), x->begin() + 7)));
  read.clear_x();
  read.clear_estimate();
  EXPECT_EQ(read.SerializeAsString(), SomeFields().SerializeAsString());
}

TEST(TensorWire, ReadsWhatGeneratedCodeWroteHoweverItIsCutUp) {
  DenoiseRequest message = SomeFields();
  const std::vector<float> x = Counting(1000);
  message.set_x(BytesOf(x));
  for (const size_t piece : {1, 3, 16, 4000, 100'000}) {
    grpc::ByteBuffer bytes = InPieces(message.SerializeAsString(), piece);
    DenoiseRequest fields;
    std::vector<float> read_x;
    std::vector<float> read_estimate;
    const absl::Status status =
        DecodeWithTensors(&bytes, &fields,
                          std::vector<TensorTarget>{{DenoiseRequest::kXFieldNumber, &read_x},
                                                    {DenoiseRequest::kEstimateFieldNumber, &read_estimate}});
    ASSERT_TRUE(status.ok()) << piece << ": " << status;
    EXPECT_EQ(read_x, x) << piece;
    EXPECT_TRUE(read_estimate.empty());
    EXPECT_EQ(fields.SerializeAsString(), SomeFields().SerializeAsString());
  }
}

TEST(TensorWire, TensorsBeforeOtherFieldsAreFoundToo) {
  DenoiseRequest tensor;
  tensor.set_x(BytesOf(Counting(5)));
  grpc::ByteBuffer bytes = InPieces(tensor.SerializeAsString() + SomeFields().SerializeAsString(), 9);
  DenoiseRequest fields;
  std::vector<float> x;
  ASSERT_TRUE(DecodeWithTensors(&bytes, &fields, std::vector<TensorTarget>{{DenoiseRequest::kXFieldNumber, &x}}).ok());
  EXPECT_EQ(x, Counting(5));
  EXPECT_EQ(fields.id(), 77);
}

TEST(TensorWire, TheOwnerIsKeptUntilTheBufferIsGone) {
  auto x = std::make_shared<const std::vector<float>>(Counting(10));
  const std::weak_ptr<const std::vector<float>> watched = x;
  const std::vector<TensorField> tensors = {{DenoiseRequest::kXFieldNumber, *x}};
  grpc::ByteBuffer bytes = EncodeWithTensors(SomeFields(), tensors, x);
  x.reset();
  EXPECT_FALSE(watched.expired());
  bytes.Clear();
  EXPECT_TRUE(watched.expired());
}

TEST(TensorWire, DamagedMessagesAreErrors) {
  DenoiseRequest message = SomeFields();
  message.set_x(BytesOf(Counting(8)));
  const std::string whole = message.SerializeAsString();
  DenoiseRequest odd = SomeFields();
  odd.set_x("12345");
  const std::string announced = SomeFields().SerializeAsString() + std::string("\x72\xfc\xff\xff\xff\x0f", 6);
  for (const std::string& text : {whole.substr(0, whole.size() - 1), odd.SerializeAsString(), announced,
                                  std::string("\xff\xff\xff"), std::string("\x0b")}) {
    grpc::ByteBuffer bytes = InPieces(text, 16);
    DenoiseRequest fields;
    std::vector<float> x;
    const absl::Status status =
        DecodeWithTensors(&bytes, &fields, std::vector<TensorTarget>{{DenoiseRequest::kXFieldNumber, &x}});
    EXPECT_EQ(ErrorReason(status), "MALFORMED_MESSAGE") << status;
    EXPECT_LE(x.size(), 8u);
  }
}

}  // namespace
}  // namespace atl::wire
