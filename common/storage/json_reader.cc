#include "common/storage/json_reader.h"

#include <set>
#include <utility>

#include "common/base/errors.h"
#include "common/storage/sha256.h"
#include "fmt/format.h"

namespace atl::storage {
namespace {

using nlohmann::json;

// The last line of what ToText writes: the hash of all text before it.
constexpr std::string_view kEndOfObject = "\n}";
constexpr std::string_view kSealStart = ",\n  \"sha256\": \"";
constexpr std::string_view kSealEnd = "\"\n}\n";
constexpr size_t kHashSize = 64;

// The text's last line with what belongs to it, or "" when it is no hash.
std::string_view SealOf(std::string_view text) {
  constexpr size_t kSize = kSealStart.size() + kHashSize + kSealEnd.size();
  if (text.size() < kSize) return "";
  const std::string_view seal = text.substr(text.size() - kSize);
  return seal.starts_with(kSealStart) && seal.ends_with(kSealEnd) ? seal : "";
}

std::string_view HashIn(std::string_view seal) {
  return seal.substr(kSealStart.size(), kHashSize);
}

// Returns the found value, short enough for a message.
std::string Shown(const json& value) {
  constexpr size_t kLongest = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

// `byte` counts from 1, and is one beyond the text where it ends too early.
std::string NoJson(std::string_view text, size_t byte) {
  if (text.empty()) return "nothing";
  if (byte > text.size()) return fmt::format("text that is no JSON: it ends too early, after {} bytes", text.size());
  constexpr size_t kBefore = 12;
  const size_t at = std::max<size_t>(byte, 1) - 1;
  const size_t from = at - std::min(at, kBefore);
  return fmt::format("text that is no JSON at byte {}: behind {} stands {}", at + 1,
                     Shown(json(std::string(text.substr(from, at - from)))),
                     Shown(json(std::string(text.substr(at, 1)))));
}

// Stops at a key that its object has already: json::parse keeps the last of them, and a manifest with two is not what
// its writer meant. A callback of json::parse would take quadratic time for a list of objects.
class RepeatedKey final : public nlohmann::json_sax<json> {
 public:
  const std::string& found() const { return found_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool start_object(size_t) override {
    open_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    found_ = name;
    return false;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string found_;
};

}  // namespace

bool IsSealed(std::string_view text) {
  const std::string_view seal = SealOf(text);
  return !seal.empty() && Sha256(text.substr(0, text.size() - seal.size())) == HashIn(seal);
}

absl::StatusOr<json> ParseSealedObject(std::string_view text, std::string_view file_name) {
  if (const std::string_view seal = SealOf(text); !seal.empty()) {
    const std::string found = Sha256(text.substr(0, text.size() - seal.size()));
    if (found != HashIn(seal)) {
      return MakeError(absl::StatusCode::kDataLoss, "HASH_MISMATCH",
                       fmt::format("{}: expected SHA-256 {} of what stands above its last line, found {}", file_name,
                                   Shown(std::string(HashIn(seal))), found));
    }
  }
  return ParseJsonObject(text, file_name);
}

absl::StatusOr<json> ParseJsonObject(std::string_view text, std::string_view file_name) {
  json parsed;
  std::string bad;
  try {
    parsed = json::parse(text);
    if (!parsed.is_object()) bad = Shown(parsed);
  } catch (const json::parse_error& error) {
    bad = NoJson(text, error.byte);
  } catch (const json::exception&) {
    bad = "a number that no double holds";
  }
  if (!bad.empty()) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                     fmt::format("{}: expected a JSON object, found {}", file_name, bad));
  }
  if (RepeatedKey watch; !json::sax_parse(text, &watch)) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                     fmt::format("{}: expected each key once, found '{}' repeated", file_name, watch.found()));
  }
  return parsed;
}

void JsonReader::FailAt(const std::string& path, std::string_view expected, const json& found) {
  if (!status_.ok()) return;
  status_ = MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                      fmt::format("{}: {}: expected {}, found {}", file_name_, path, expected, Shown(found)));
}

const json* JsonReader::Field(const char* name, json::value_t type) {
  if (!status_.ok()) return nullptr;
  const auto field = object_.find(name);
  const std::string expected = json(type).type_name();
  if (field == object_.end()) {
    status_ = MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                        fmt::format("{}: {}{}: expected {}, found none", file_name_, path_, name, expected));
    return nullptr;
  }
  const bool number = type == json::value_t::number_float && field->is_number();
  if (field->type() != type && !number) {
    Fail(name, expected, *field);
    return nullptr;
  }
  return &*field;
}

bool JsonReader::Integer(const std::string& path, const json& value, int64_t minimum, int64_t maximum, int64_t* out) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())
                        : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (!fits || number < minimum || number > maximum) {
    FailAt(path, fmt::format("an integer from {} to {}", minimum, maximum), value);
    return false;
  }
  *out = number;
  return true;
}

void JsonReader::Read(const char* name, std::string* out) {
  if (const json* field = Field(name, json::value_t::string)) *out = field->get<std::string>();
}

void JsonReader::Read(const char* name, bool* out) {
  if (const json* field = Field(name, json::value_t::boolean)) *out = field->get<bool>();
}

void JsonReader::Read(const char* name, double* out) {
  if (const json* field = Field(name, json::value_t::number_float)) *out = field->get<double>();
}

void JsonReader::Read(const char* name, uint64_t* out) {
  const json* field = Field(name, json::value_t::number_float);
  if (field == nullptr) return;
  if (!field->is_number_unsigned()) return Fail(name, "an unsigned integer", *field);
  *out = field->get<uint64_t>();
}

void JsonReader::Read(const char* name, int64_t* out, int64_t minimum) {
  if (const json* field = Field(name, json::value_t::number_float)) {
    Integer(path_ + name, *field, minimum, std::numeric_limits<int64_t>::max(), out);
  }
}

void JsonReader::Read(const char* name, int32_t* out, int32_t minimum) {
  int64_t wide = 0;
  const json* field = Field(name, json::value_t::number_float);
  if (field != nullptr && Integer(path_ + name, *field, minimum, std::numeric_limits<int32_t>::max(), &wide)) {
    *out = static_cast<int32_t>(wide);
  }
}

void JsonReader::Read(const char* name, std::vector<std::string>* out) {
  const json* field = Field(name, json::value_t::array);
  if (field == nullptr) return;
  for (const json& element : *field) {
    if (!element.is_string()) return Fail(name, "a list of strings", element);
    out->push_back(element.get<std::string>());
  }
}

void JsonReader::Read(const char* name, std::vector<int64_t>* out) {
  const json* field = Field(name, json::value_t::array);
  if (field == nullptr) return;
  for (const json& element : *field) {
    if (!Integer(path_ + name, element, 0, std::numeric_limits<int64_t>::max(), &out->emplace_back())) return;
  }
}

void JsonReader::Read(const char* name, std::vector<double>* out) {
  const json* field = Field(name, json::value_t::array);
  if (field == nullptr) return;
  for (const json& element : *field) {
    if (!element.is_number()) return Fail(name, "a list of numbers", element);
    out->push_back(element.get<double>());
  }
}

void JsonReader::Read(const char* name, std::map<std::string, std::string>* out) {
  const json* field = Field(name, json::value_t::object);
  if (field == nullptr) return;
  for (const auto& [key, value] : field->items()) {
    if (!value.is_string()) return FailAt(path_ + name + "." + key, "a string", value);
    out->emplace(key, value.get<std::string>());
  }
}

std::string ToText(const nlohmann::ordered_json& value) {
  std::string text = value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize(text.size() - kEndOfObject.size());
  const std::string hash = Sha256(text);
  return fmt::format("{}{}{}{}", text, kSealStart, hash, kSealEnd);
}

bool IsSafeRelativeName(std::string_view name) {
  if (name.find('\0') != std::string_view::npos) return false;
  for (size_t start = 0; start <= name.size();) {
    const size_t end = std::min(name.find('/', start), name.size());
    const std::string_view part = name.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") return false;
    start = end + 1;
  }
  return true;
}

}  // namespace atl::storage
