// YAML and JSON -> JobSpec, one visitor for every struct.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/nearest_name.h"
#include "common/spec/spec_io.h"
#include "common/spec/yaml_tree.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::spec {
namespace {

std::string Join(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

absl::Status WrongType(std::string_view path, std::string_view expected, const YamlNode& node) {
  return FieldError(path, "WRONG_TYPE",
                    fmt::format("expected {}, found {} ({})", expected, Describe(node), node.where));
}

template <typename T>
absl::Status ReadNumber(std::string_view path, const YamlNode& node, std::string_view expected, T& out) {
  if (node.kind != YamlNode::Kind::kScalar || node.quoted) return WrongType(path, expected, node);
  const char* end = node.text.data() + node.text.size();
  T value{};
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  if (error == std::errc::result_out_of_range && stop == end) {
    return FieldError(
        path, "OUT_OF_RANGE",
        fmt::format("expected {} between {} and {}, found {} ({})", expected, std::numeric_limits<T>::lowest(),
                    std::numeric_limits<T>::max(), Describe(node), node.where));
  }
  if (error != std::errc() || stop != end) return WrongType(path, expected, node);
  out = value;
  return absl::OkStatus();
}

template <std::integral T>
absl::Status ReadValue(std::string_view path, const YamlNode& node, T& out) {
  return ReadNumber(path, node, "a whole number", out);
}
absl::Status ReadValue(std::string_view path, const YamlNode& node, double& out) {
  double value = 0;
  ATOLL_RETURN_IF_ERROR(ReadNumber(path, node, "a number", value));
  if (!std::isfinite(value)) return WrongType(path, "a finite number", node);
  out = value;
  return absl::OkStatus();
}

absl::Status ReadValue(std::string_view path, const YamlNode& node, bool& out) {
  if (node.kind == YamlNode::Kind::kScalar && !node.quoted && (node.text == "true" || node.text == "false")) {
    out = node.text == "true";
    return absl::OkStatus();
  }
  return WrongType(path, "true or false", node);
}

absl::Status ReadValue(std::string_view path, const YamlNode& node, std::string& out) {
  if (node.kind != YamlNode::Kind::kScalar) return WrongType(path, "text", node);
  out = node.text;
  return absl::OkStatus();
}

absl::Status ReadValue(std::string_view path, const YamlNode& node, std::map<std::string, std::string>& out) {
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind != YamlNode::Kind::kMap) return WrongType(path, "a mapping of names to text", node);
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : node.fields) {
    ATOLL_RETURN_IF_ERROR(ReadValue(Join(path, key), *value, values[key]));
  }
  out = std::move(values);
  return absl::OkStatus();
}

template <typename S>
requires std::is_class_v<S> absl::Status ReadValue(std::string_view path, const YamlNode& node, S& spec);

template <typename T>
absl::Status ReadValue(std::string_view path, const YamlNode& node, std::vector<T>& out) {
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind != YamlNode::Kind::kSequence) return WrongType(path, "a list", node);
  std::vector<T> values(node.items.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(ReadValue(fmt::format("{}[{}]", path, i), *node.items[i], values[i]));
  }
  out = std::move(values);
  return absl::OkStatus();
}

template <typename S>
absl::Status CheckNames(std::string_view path, const YamlNode& node, S& spec) {
  std::vector<std::string> known;
  Visit([&known](const char* name, auto&) { known.emplace_back(name); }, spec);
  for (const auto& [name, value] : node.fields) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string nearest = NearestName(name, known);
    const std::string hint = nearest.empty() ? fmt::format("expected one of {}", fmt::join(known, ", "))
                                             : fmt::format("did you mean '{}'?", nearest);
    return FieldError(Join(path, name), "UNKNOWN_FIELD", fmt::format("unknown field; {} ({})", hint, value->where));
  }
  return absl::OkStatus();
}

// A mapping with a field per member; absent members keep their value.
template <typename S>
requires std::is_class_v<S> absl::Status ReadValue(std::string_view path, const YamlNode& node, S& spec) {
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind != YamlNode::Kind::kMap) return WrongType(path, "a mapping of field names to values", node);
  ATOLL_RETURN_IF_ERROR(CheckNames(path, node, spec));
  absl::Status status;
  Visit(
      [&](const char* name, auto& field) {
        if constexpr (std::is_same_v<S, JobSpec>) {
          if (std::string_view(name) == "router_training") spec.router_training = spec.training;
        }
        const YamlNode* value = node.Find(name);
        if (status.ok() && value != nullptr) status = ReadValue(Join(path, name), *value, field);
      },
      spec);
  return status;
}

absl::StatusOr<JobSpec> ReadJobSpec(const YamlNode& root) {
  JobSpec spec;
  ATOLL_RETURN_IF_ERROR(ReadValue("", root, spec));
  return spec;
}

}  // namespace

absl::StatusOr<JobSpec> ParseJobSpec(std::string_view yaml, std::string_view file_name,
                                     const std::vector<Override>& overrides) {
  ATOLL_ASSIGN_OR_RETURN(std::shared_ptr<YamlNode> root, ParseYamlTree(yaml, file_name));
  if (root->kind != YamlNode::Kind::kMap && root->kind != YamlNode::Kind::kNull) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
        fmt::format("{}: expected a mapping of field names to values, found {}", file_name, Describe(*root)));
  }
  for (const Override& override : overrides) {
    const std::string where = fmt::format("--set {}", override.path);
    ATOLL_ASSIGN_OR_RETURN(std::shared_ptr<YamlNode> value, ParseYamlTree(override.value, where, where));
    ATOLL_RETURN_IF_ERROR(SetAtPath(root.get(), override.path, std::move(value)));
  }
  return ReadJobSpec(*root);
}

absl::StatusOr<JobSpec> ParseStoredJobSpec(std::string_view text, std::string_view name) {
  const std::shared_ptr<YamlNode> root = ParseJsonTree(text, name);
  // If the text is no valid JSON, the YAML reader reports the error.
  return root == nullptr ? ParseJobSpec(text, name) : ReadJobSpec(*root);
}

}  // namespace atl::spec
