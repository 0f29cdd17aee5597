// JobSpec -> YAML.
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "yaml-cpp/emitter.h"
#include "yaml-cpp/emittermanip.h"

namespace atl::spec {
namespace {

void Emit(YAML::Emitter& out, const std::string& value) {
  out << YAML::DoubleQuoted << value;
}
void Emit(YAML::Emitter& out, bool value) {
  out << (value ? "true" : "false");
}
void Emit(YAML::Emitter& out, int32_t value) {
  out << fmt::format("{}", value);
}
void Emit(YAML::Emitter& out, int64_t value) {
  out << fmt::format("{}", value);
}
void Emit(YAML::Emitter& out, uint64_t value) {
  out << fmt::format("{}", value);
}
void Emit(YAML::Emitter& out, double value) {
  out << fmt::format("{}", value);
}  // shortest text that reads back equal

void Emit(YAML::Emitter& out, const std::map<std::string, std::string>& values) {
  out << YAML::Flow << YAML::BeginMap;
  for (const auto& [key, value] : values) {
    out << YAML::Key << YAML::DoubleQuoted << key << YAML::Value;
    Emit(out, value);
  }
  out << YAML::EndMap;
}

template <typename S>
requires std::is_class_v<S>
void Emit(YAML::Emitter& out, const S& spec);

template <typename T>
void Emit(YAML::Emitter& out, const std::vector<T>& values) {
  if (!std::is_class_v<T> || values.empty()) out << YAML::Flow;
  out << YAML::BeginSeq;
  for (const T& value : values) Emit(out, value);
  out << YAML::EndSeq;
}

template <typename S>
requires std::is_class_v<S>
void Emit(YAML::Emitter& out, const S& spec) {
  out << YAML::BeginMap;
  Visit(
      [&out](const char* name, const auto& field) {
        out << YAML::Key << name << YAML::Value;
        Emit(out, field);
      },
      spec);
  out << YAML::EndMap;
}

}  // namespace

std::string ToYaml(const JobSpec& spec) {
  YAML::Emitter out;
  Emit(out, spec);
  return std::string(out.c_str()) + "\n";
}

}  // namespace atl::spec
