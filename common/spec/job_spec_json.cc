// JobSpec <-> JSON, the form in which it is stored: YAML too, and read ten times faster.
#include <type_traits>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "common/spec/spec_reader.h"
#include "common/spec/yaml_tree.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

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

// Builds the tree that the YAML parser would, of a text that this library wrote: what it never writes is refused.
class JsonTree : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit JsonTree(std::string where) : where_(std::move(where)) {}

  const std::shared_ptr<YamlNode>& root() const { return root_; }

  bool null() override { return Place(YamlNode::Kind::kNull, "", false); }
  bool boolean(bool value) override { return Place(YamlNode::Kind::kScalar, value ? "true" : "false", false); }
  bool number_integer(number_integer_t value) override { return PlaceNumber(fmt::format("{}", value)); }
  bool number_unsigned(number_unsigned_t value) override { return PlaceNumber(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return PlaceNumber(text); }
  bool string(string_t& text) override { return Place(YamlNode::Kind::kScalar, text, true); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(YamlNode::Kind::kMap); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(YamlNode::Kind::kSequence); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (open_.back()->Find(name) != nullptr) return false;
    open_.back()->fields.emplace_back(name, nullptr);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool PlaceNumber(const std::string& text) { return Place(YamlNode::Kind::kScalar, text, false); }

  bool Place(YamlNode::Kind kind, const std::string& text, bool quoted) {
    if (++nodes_ > kMaxYamlNodes) return false;
    auto node = std::make_shared<YamlNode>();
    node->kind = kind;
    node->text = text;
    node->quoted = quoted;
    node->where = where_;
    placed_ = node;
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (open_.back()->kind == YamlNode::Kind::kSequence) {
      open_.back()->items.push_back(std::move(node));
    } else {
      open_.back()->fields.back().second = std::move(node);
    }
    return true;
  }

  bool Open(YamlNode::Kind kind) {
    if (open_.size() >= static_cast<size_t>(kMaxYamlDepth) || !Place(kind, "", false)) return false;
    open_.push_back(placed_);
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  const std::string where_;
  std::shared_ptr<YamlNode> root_;
  std::shared_ptr<YamlNode> placed_;
  std::vector<std::shared_ptr<YamlNode>> open_;
  int nodes_ = 0;
};

}  // namespace

std::string ToJson(const JobSpec& spec) {
  return ToTree(spec).dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<JobSpec> ParseStoredJobSpec(std::string_view text, std::string_view name) {
  JsonTree tree{std::string(name)};
  // The YAML reader says what is wrong with it.
  if (text.size() > kMaxYamlBytes || !nlohmann::json::sax_parse(text, &tree)) return ParseJobSpec(text, name);
  return ReadJobSpec(*tree.root());
}

}  // namespace atl::spec
