// JobSpec -> JSON, the form in which it is stored, and YAML.
#include <type_traits>

#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "yaml-cpp/emitter.h"
#include "yaml-cpp/emittermanip.h"

namespace atl::spec {
namespace {

using Json = nlohmann::ordered_json;

template <typename S>
concept HasFields = std::is_class_v<S> && requires(S& s) {
  Visit([](const char*, auto&) {}, s);
};

template <typename T>
Json ToTree(const T& value) {
  return value;
}

template <HasFields S>
Json ToTree(const S& spec);

template <typename T>
Json ToTree(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(ToTree(value));
  return list;
}

template <HasFields S>
Json ToTree(const S& spec) {
  Json fields = Json::object();
  Visit([&fields](const char* name, const auto& field) { fields[name] = ToTree(field); }, spec);
  return fields;
}

void Emit(YAML::Emitter& out, const Json& value) {
  // Mappings, and lists of them, stand one field per line.
  if (value.empty() || (value.is_array() && !value.front().is_object())) out << YAML::Flow;
  if (value.is_object()) {
    out << YAML::BeginMap;
    for (const auto& [name, field] : value.items()) {
      out << YAML::Key << name << YAML::Value;
      Emit(out, field);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::BeginSeq;
    for (const Json& item : value) Emit(out, item);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    out << YAML::DoubleQuoted << value.get<std::string>();
  } else if (value.is_number_float()) {
    out << fmt::format("{}", value.get<double>());  // shortest text that reads back equal
  } else {
    out << value.dump();
  }
}

}  // namespace

std::string ToJson(const JobSpec& spec) {
  return ToTree(spec).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ToYaml(const JobSpec& spec) {
  YAML::Emitter out;
  Emit(out, ToTree(spec));
  return std::string(out.c_str()) + "\n";
}

}  // namespace atl::spec
