#include "common/wire/spec_wire.h"

#include <set>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace atl::wire {
namespace {

// Gives every field of a spec a value of its own that is not its default.
struct Filler {
  int next = 1;
  void operator()(const char*, int32_t& value) { value = 1000 + next++; }
  void operator()(const char*, int64_t& value) { value = (int64_t{1} << 40) + next++; }
  void operator()(const char*, uint64_t& value) { value = (uint64_t{1} << 63) + next++; }
  void operator()(const char*, double& value) { value = 0.1 * next++; }
  void operator()(const char*, bool& value) { value = !value; }
  void operator()(const char* name, std::string& value) { value = std::string(name) + std::to_string(next++); }
  void operator()(const char*, std::map<std::string, std::string>& value) { value = {{"a", "b"}, {"c", ""}}; }
  template <typename T>
  void operator()(const char* name, std::vector<T>& value) {
    value.resize(2);
    for (T& item : value) (*this)(name, item);
  }
  template <typename S>
  requires std::is_class_v<S>
  void operator()(const char*, S& value) { spec::Visit(*this, value); }
};

TEST(SpecWireTest, EveryFieldSurvivesTheRoundTrip) {
  spec::JobSpec filled;
  spec::Visit(Filler(), filled);
  EXPECT_EQ(FromProto(ToProto(filled)), filled);
  // Zeros and empty texts that are set are no defaults.
  spec::JobSpec zeros;
  zeros.training.steps = 5;
  zeros.training.learning_rate = 0;
  zeros.training.beta1 = 0;
  zeros.pipeline.micro_batches = 0;
  zeros.features.kind = "";
  EXPECT_EQ(FromProto(ToProto(zeros)), zeros);
}

TEST(SpecWireTest, WhatIsUnsetKeepsItsDefault) {
  atlpb::job::v1::JobSpec proto;
  EXPECT_EQ(FromProto(proto), spec::JobSpec{});
  proto.set_experts(4);
  proto.mutable_training();
  proto.mutable_model()->set_depth(0);
  spec::JobSpec expected;
  expected.experts = 4;
  expected.model.depth = 0;
  EXPECT_EQ(FromProto(proto), expected);
}

TEST(SpecWireTest, RouterTrainingTakesWhatIsUnsetFromTraining) {
  atlpb::job::v1::JobSpec proto;
  proto.mutable_training()->set_steps(400);
  proto.mutable_training()->set_batch_size(32);
  proto.mutable_router_training()->set_batch_size(16);
  const spec::JobSpec spec = FromProto(proto);
  EXPECT_EQ(spec.router_training.steps, 400);
  EXPECT_EQ(spec.router_training.batch_size, 16);
}

template <typename T>
inline constexpr bool kIsList = false;
template <typename T>
inline constexpr bool kIsList<std::vector<T>> = true;

// Collects "message.field" of what Visit names.
struct Names {
  const google::protobuf::Descriptor* descriptor;
  std::set<std::string>* names;
  template <typename T>
  void operator()(const char* name, T& value) {
    const auto* field = descriptor->FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    names->insert(field->full_name());
    if constexpr (kIsList<T>) {
      if constexpr (std::is_class_v<typename T::value_type> && !std::is_same_v<typename T::value_type, std::string>) {
        typename T::value_type item;
        spec::Visit(Names{field->message_type(), names}, item);
      }
    } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string> &&
                         !std::is_same_v<T, std::map<std::string, std::string>>) {
      spec::Visit(Names{field->message_type(), names}, value);
    }
  }
};

void CollectFields(const google::protobuf::Descriptor* descriptor, std::set<std::string>* names) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    names->insert(field->full_name());
    if (field->message_type() != nullptr && !field->is_map()) CollectFields(field->message_type(), names);
  }
}

TEST(SpecWireTest, EveryProtoFieldIsVisited) {
  std::set<std::string> visited;
  spec::JobSpec spec;
  spec::Visit(Names{atlpb::job::v1::JobSpec::descriptor(), &visited}, spec);
  std::set<std::string> declared;
  CollectFields(atlpb::job::v1::JobSpec::descriptor(), &declared);
  EXPECT_EQ(visited, declared);
}

}  // namespace
}  // namespace atl::wire
