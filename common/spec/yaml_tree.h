// A YAML or JSON document as a tree that remembers lines, with limits against documents that would exhaust memory.
// Private to common/spec. yaml-cpp and its exceptions stay in yaml_tree.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::spec {

inline constexpr size_t kMaxYamlBytes = 1 << 20;
inline constexpr int kMaxYamlDepth = 32;
inline constexpr int kMaxYamlAliases = 100;
inline constexpr int kMaxYamlNodes = 20'000;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  std::string text;     // of a scalar
  bool quoted = false;  // a quoted scalar is text, never a number
  std::string where;    // "job.yaml, line 3" or "--set training.steps"
  // Shared if the document uses an alias; never a cycle.
  std::vector<std::shared_ptr<YamlNode>> items;
  std::vector<std::pair<std::string, std::shared_ptr<YamlNode>>> fields;  // of a map, in order

  const YamlNode* Find(std::string_view name) const;
};

// Returns "'abc'", "a list", "a mapping" or "nothing", for messages.
std::string Describe(const YamlNode& node);

// Parses the only document of `yaml`; without a document returns a null node. INVALID_ARGUMENT with the line:
// INVALID_YAML for invalid text, DUPLICATE_FIELD for a repeated key, SPEC_TOO_LARGE above a limit. `where` overrides
// the place that nodes name; empty means "<file_name>, line <n>".
absl::StatusOr<std::shared_ptr<YamlNode>> ParseYamlTree(std::string_view yaml, std::string_view file_name,
                                                        std::string_view where = "");

// Returns the same tree of a JSON text, ten times faster. Null if the text is no JSON, or breaks a rule of
// ParseYamlTree.
std::shared_ptr<YamlNode> ParseJsonTree(std::string_view text, std::string_view where);

// Puts `value` at a dotted path and makes the mappings on the way. INVALID_ARGUMENT if the path is malformed or passes
// through a value that is no mapping.
absl::Status SetAtPath(YamlNode* root, std::string_view path, std::shared_ptr<YamlNode> value);

}  // namespace atl::spec
