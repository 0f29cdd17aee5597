#include "common/wire/spec_wire.h"

#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "spdlog/spdlog.h"

namespace atl::wire {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A struct with a field that its message lacks is a bug of this build.
const FieldDescriptor* FieldOf(const Message& message, const char* name) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr) {
    spdlog::critical("message {} has no field {}", message.GetDescriptor()->full_name(), name);
    std::abort();
  }
  return field;
}

using Map = std::map<std::string, std::string>;

class Writer {
 public:
  explicit Writer(Message* message) : message_(message), reflection_(message->GetReflection()) {}

  void operator()(const char* name, int32_t value) { reflection_->SetInt32(message_, FieldOf(*message_, name), value); }
  void operator()(const char* name, int64_t value) { reflection_->SetInt64(message_, FieldOf(*message_, name), value); }
  void operator()(const char* name, uint64_t value) {
    reflection_->SetUInt64(message_, FieldOf(*message_, name), value);
  }
  void operator()(const char* name, double value) { reflection_->SetDouble(message_, FieldOf(*message_, name), value); }
  void operator()(const char* name, bool value) { reflection_->SetBool(message_, FieldOf(*message_, name), value); }
  void operator()(const char* name, const std::string& value) {
    reflection_->SetString(message_, FieldOf(*message_, name), value);
  }
  void operator()(const char* name, const Map& values) {
    const FieldDescriptor* field = FieldOf(*message_, name);
    reflection_->ClearField(message_, field);
    for (const auto& [key, value] : values) {
      Writer entry(reflection_->AddMessage(message_, field));
      entry("key", key);
      entry("value", value);
    }
  }
  template <typename T>
  void operator()(const char* name, const std::vector<T>& values) {
    const FieldDescriptor* field = FieldOf(*message_, name);
    reflection_->ClearField(message_, field);
    for (const T& value : values) Add(field, value);
  }
  template <typename S>
  requires std::is_class_v<S>
  void operator()(const char* name, const S& value) {
    spec::Visit(Writer(reflection_->MutableMessage(message_, FieldOf(*message_, name))), value);
  }

 private:
  void Add(const FieldDescriptor* field, int32_t value) { reflection_->AddInt32(message_, field, value); }
  void Add(const FieldDescriptor* field, const std::string& value) { reflection_->AddString(message_, field, value); }
  template <typename S>
  requires std::is_class_v<S>
  void Add(const FieldDescriptor* field, const S& value) {
    spec::Visit(Writer(reflection_->AddMessage(message_, field)), value);
  }

  Message* const message_;
  const Reflection* const reflection_;
};

template <typename T>
inline constexpr bool kIsList = false;
template <typename T>
inline constexpr bool kIsList<std::vector<T>> = true;

class Reader {
 public:
  explicit Reader(const Message& message) : message_(message), reflection_(message.GetReflection()) {}

  template <typename T>
  void operator()(const char* name, T& value) {
    const FieldDescriptor* field = FieldOf(message_, name);
    if constexpr (std::is_same_v<T, Map>) {
      for (int i = 0; i < reflection_->FieldSize(message_, field); ++i) {
        Reader entry(reflection_->GetRepeatedMessage(message_, field, i));
        std::string key;
        std::string text;
        entry("key", key);
        entry("value", text);
        value[key] = text;
      }
    } else if constexpr (kIsList<T>) {
      for (int i = 0; i < reflection_->FieldSize(message_, field); ++i) GetItem(field, i, value.emplace_back());
    } else if (reflection_->HasField(message_, field)) {
      Get(field, value);
    }
  }

 private:
  void GetItem(const FieldDescriptor* field, int i, int32_t& value) {
    value = reflection_->GetRepeatedInt32(message_, field, i);
  }
  void GetItem(const FieldDescriptor* field, int i, std::string& value) {
    value = reflection_->GetRepeatedString(message_, field, i);
  }
  template <typename S>
  requires std::is_class_v<S>
  void GetItem(const FieldDescriptor* field, int i, S& value) {
    spec::Visit(Reader(reflection_->GetRepeatedMessage(message_, field, i)), value);
  }
  void Get(const FieldDescriptor* field, int32_t& value) { value = reflection_->GetInt32(message_, field); }
  void Get(const FieldDescriptor* field, int64_t& value) { value = reflection_->GetInt64(message_, field); }
  void Get(const FieldDescriptor* field, uint64_t& value) { value = reflection_->GetUInt64(message_, field); }
  void Get(const FieldDescriptor* field, double& value) { value = reflection_->GetDouble(message_, field); }
  void Get(const FieldDescriptor* field, bool& value) { value = reflection_->GetBool(message_, field); }
  void Get(const FieldDescriptor* field, std::string& value) { value = reflection_->GetString(message_, field); }
  template <typename S>
  requires std::is_class_v<S>
  void Get(const FieldDescriptor* field, S& value) {
    spec::Visit(Reader(reflection_->GetMessage(message_, field)), value);
  }

  const Message& message_;
  const Reflection* const reflection_;
};

}  // namespace

void ToProto(const spec::JobSpec& spec, atlpb::job::v1::JobSpec* proto) {
  spec::Visit(Writer(proto), spec);
}

atlpb::job::v1::JobSpec ToProto(const spec::JobSpec& spec) {
  atlpb::job::v1::JobSpec proto;
  ToProto(spec, &proto);
  return proto;
}

spec::JobSpec FromProto(const atlpb::job::v1::JobSpec& proto) {
  spec::JobSpec spec;
  Reader reader(proto);
  spec::Visit(
      [&](const char* name, auto& field) {
        if (std::string_view(name) == "router_training") spec.router_training = spec.training;
        reader(name, field);
      },
      spec);
  return spec;
}

void ToProto(const spec::PrecisionSpec& precision, atlpb::plan::v1::Precision* proto) {
  spec::Visit(Writer(proto), precision);
}

spec::PrecisionSpec FromProto(const atlpb::plan::v1::Precision& proto) {
  spec::PrecisionSpec precision;
  spec::Visit(Reader(proto), precision);
  return precision;
}

}  // namespace atl::wire
