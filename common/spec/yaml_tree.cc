#include "common/spec/yaml_tree.h"

#include <istream>
#include <map>
#include <stdexcept>
#include <streambuf>

#include "common/base/errors.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace atl::spec {
namespace {

using NodePtr = std::shared_ptr<YamlNode>;

// Thrown inside the handler, through yaml-cpp, and caught in ParseYamlTree.
struct TreeError : std::runtime_error {
  TreeError(const char* reason, const std::string& message) : std::runtime_error(message), reason(reason) {}
  const char* reason;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view file_name, std::string_view where) : file_name_(file_name), where_(where) {}

  NodePtr root() const { return root_ ? root_ : std::make_shared<YamlNode>(); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Place(NewNode(YamlNode::Kind::kNull, mark, anchor), mark);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // yaml-cpp reads other bytes as they are but writes them as replacement characters, so that a spec would not read
    // back equal.
    if (!IsPlainUtf8(value)) {
      throw TreeError("INVALID_YAML", fmt::format("expected UTF-8 text, found other bytes ({})", Where(mark)));
    }
    const bool quoted = tag == "!";
    const bool null = !quoted && (value.empty() || value == "~" || value == "null");
    NodePtr node = NewNode(null ? YamlNode::Kind::kNull : YamlNode::Kind::kScalar, mark, anchor);
    node->text = value;
    node->quoted = quoted;
    Place(std::move(node), mark);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (++aliases_ > kMaxYamlAliases) {
      throw TreeError("SPEC_TOO_LARGE", fmt::format("expected at most {} aliases ({})", kMaxYamlAliases, Where(mark)));
    }
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      throw TreeError("INVALID_YAML", fmt::format("an alias to what is not defined before it ({})", Where(mark)));
    }
    for (const Open& open : stack_) {
      if (open.node == found->second) {
        throw TreeError("INVALID_YAML", fmt::format("an alias inside what it names ({})", Where(mark)));
      }
    }
    Place(found->second, mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Enter(NewNode(YamlNode::Kind::kSequence, mark, anchor), mark);
  }
  void OnSequenceEnd() override { stack_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Enter(NewNode(YamlNode::Kind::kMap, mark, anchor), mark);
  }
  void OnMapEnd() override { stack_.pop_back(); }

 private:
  struct Open {
    NodePtr node;
    bool has_key = false;
    std::string key;
  };

  std::string Where(const YAML::Mark& mark) const {
    return where_.empty() ? fmt::format("{}, line {}", file_name_, mark.line + 1) : where_;
  }

  NodePtr NewNode(YamlNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (++nodes_ > kMaxYamlNodes) {
      throw TreeError("SPEC_TOO_LARGE", fmt::format("expected at most {} values ({})", kMaxYamlNodes, Where(mark)));
    }
    NodePtr node = std::make_shared<YamlNode>();
    node->kind = kind;
    node->where = Where(mark);
    if (anchor != 0) anchors_[anchor] = node;
    return node;
  }

  void Enter(NodePtr node, const YAML::Mark& mark) {
    if (stack_.size() >= static_cast<size_t>(kMaxYamlDepth)) {
      throw TreeError("SPEC_TOO_LARGE", fmt::format("expected nesting of at most {} ({})", kMaxYamlDepth, Where(mark)));
    }
    Place(node, mark);
    stack_.push_back({std::move(node)});
  }

  void Place(NodePtr node, const YAML::Mark& mark) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& open = stack_.back();
    if (open.node->kind == YamlNode::Kind::kSequence) {
      open.node->items.push_back(std::move(node));
    } else if (!open.has_key) {
      TakeKey(open, *node, mark);
    } else {
      open.has_key = false;
      open.node->fields.emplace_back(std::move(open.key), std::move(node));
    }
  }

  void TakeKey(Open& open, const YamlNode& node, const YAML::Mark& mark) {
    if (node.kind != YamlNode::Kind::kScalar) {
      throw TreeError("INVALID_YAML", fmt::format("expected a field name, found {} ({})", Describe(node), Where(mark)));
    }
    if (open.node->Find(node.text) != nullptr) {
      throw TreeError("DUPLICATE_FIELD", fmt::format("field '{}' is given twice ({})", node.text, Where(mark)));
    }
    open.key = node.text;
    open.has_key = true;
  }

  const std::string file_name_;
  const std::string where_;
  NodePtr root_;
  std::vector<Open> stack_;
  std::map<YAML::anchor_t, NodePtr> anchors_;
  int aliases_ = 0;
  int nodes_ = 0;
};

// Passes JSON on as the events of the YAML that it also is.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonEvents(TreeBuilder* builder) : builder_(builder) {}

  bool null() override { return Scalar("", "null"); }
  bool boolean(bool value) override { return Scalar("", value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Scalar("", fmt::format("{}", value)); }
  bool number_unsigned(number_unsigned_t value) override { return Scalar("", fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return Scalar("", text); }
  bool string(string_t& text) override { return Scalar("!", text); }
  bool key(string_t& name) override { return Scalar("!", name); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override {
    builder_->OnMapStart(mark_, "", 0, YAML::EmitterStyle::Default);
    return true;
  }
  bool end_object() override {
    builder_->OnMapEnd();
    return true;
  }
  bool start_array(size_t) override {
    builder_->OnSequenceStart(mark_, "", 0, YAML::EmitterStyle::Default);
    return true;
  }
  bool end_array() override {
    builder_->OnSequenceEnd();
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool Scalar(const char* tag, const std::string& text) {
    builder_->OnScalar(mark_, tag, 0, text);
    return true;
  }

  TreeBuilder* const builder_;
  const YAML::Mark mark_;
};

// Reads borrowed bytes as a stream, without a copy.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

absl::Status TreeStatus(std::string_view reason, std::string_view message) {
  // The parser repeats what it read, line breaks too.
  return MakeError(absl::StatusCode::kInvalidArgument, reason, OneLine(message));
}

}  // namespace

const YamlNode* YamlNode::Find(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return value.get();
  }
  return nullptr;
}

std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a mapping";
    case YamlNode::Kind::kScalar:
      break;
  }
  constexpr size_t kShown = 60;
  const std::string text = node.text.size() > kShown ? node.text.substr(0, kShown) + "…" : node.text;
  return node.quoted ? fmt::format("the text \"{}\"", OneLine(text)) : fmt::format("'{}'", OneLine(text));
}

absl::StatusOr<NodePtr> ParseYamlTree(std::string_view yaml, std::string_view file_name, std::string_view where) {
  if (yaml.size() > kMaxYamlBytes) {
    return TreeStatus("SPEC_TOO_LARGE",
                      fmt::format("{}: expected at most {} bytes, found {}", file_name, kMaxYamlBytes, yaml.size()));
  }
  try {
    ViewBuffer buffer(yaml);
    std::istream stream(&buffer);
    YAML::Parser parser(stream);
    TreeBuilder builder(file_name, where);
    parser.HandleNextDocument(builder);
    TreeBuilder second(file_name, where);
    if (parser.HandleNextDocument(second)) {
      return TreeStatus("INVALID_YAML", fmt::format("{}: expected one YAML document, found several", file_name));
    }
    // A document without a value has no place of its own.
    NodePtr root = builder.root();
    if (root->where.empty()) root->where = where.empty() ? file_name : where;
    return root;
  } catch (const TreeError& error) {
    return TreeStatus(error.reason, error.what());
  } catch (const YAML::Exception& error) {
    const std::string place = !where.empty()         ? std::string(where)
                              : error.mark.is_null() ? std::string(file_name)
                                                     : fmt::format("{}, line {}", file_name, error.mark.line + 1);
    return TreeStatus("INVALID_YAML", fmt::format("expected YAML: {} ({})", error.msg, place));
  } catch (const std::exception& error) {
    return TreeStatus("INVALID_YAML", fmt::format("{}: expected YAML: {}", file_name, error.what()));
  }
}

NodePtr ParseJsonTree(std::string_view text, std::string_view where) {
  if (text.size() > kMaxYamlBytes) return nullptr;
  try {
    TreeBuilder builder(where, where);
    JsonEvents events(&builder);
    return nlohmann::json::sax_parse(text, &events) ? builder.root() : nullptr;
  } catch (const TreeError&) {
    return nullptr;
  }
}

absl::Status SetAtPath(YamlNode* root, std::string_view path, NodePtr value) {
  YamlNode* node = root;
  std::string_view rest = path;
  for (int depth = 0; depth < kMaxYamlDepth; ++depth) {
    const size_t dot = rest.find('.');
    const std::string_view name = rest.substr(0, dot);
    if (name.empty()) {
      return FieldError(path, "INVALID_VALUE", "expected a field path such as training.steps");
    }
    if (node->kind == YamlNode::Kind::kNull) node->kind = YamlNode::Kind::kMap;
    if (node->kind != YamlNode::Kind::kMap) {
      return FieldError(
          path, "WRONG_TYPE",
          fmt::format("expected a mapping before '{}', found {} ({})", name, Describe(*node), node->where));
    }
    NodePtr* slot = nullptr;
    for (auto& [key, field] : node->fields) {
      if (key == name) slot = &field;
    }
    if (slot == nullptr) {
      slot = &node->fields.emplace_back(std::string(name), std::make_shared<YamlNode>()).second;
      (*slot)->where = value->where;
    }
    if (dot == std::string_view::npos) {
      *slot = std::move(value);
      return absl::OkStatus();
    }
    // An aliased mapping is shared; what is set here must not show elsewhere.
    *slot = std::make_shared<YamlNode>(**slot);
    node = slot->get();
    rest = rest.substr(dot + 1);
  }
  return FieldError(path, "INVALID_VALUE", fmt::format("expected at most {} parts", kMaxYamlDepth));
}

}  // namespace atl::spec
