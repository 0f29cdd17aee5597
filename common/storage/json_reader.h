// Reads JSON objects into structs: names, types and ranges checked, the first error kept.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace atl::storage {

// Parses one JSON object. DATA_LOSS (FILE_MALFORMED) names the file if the text is not one, or repeats a key.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view file_name);

// Like ParseJsonObject, for texts of ToText: DATA_LOSS (HASH_MISMATCH) if the text ends in a hash that does not match.
// A text without a hash passes, because people write manifests too.
absl::StatusOr<nlohmann::json> ParseSealedObject(std::string_view text, std::string_view file_name);
// Returns whether the text ends in its own hash.
bool IsSealed(std::string_view text);

// Reads fields of one object and ignores all others. After the first error every Read does nothing, and status() names
// the field and the error. Borrows its object and file name.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& object, std::string_view file_name, std::string path = "")
      : object_(object), file_name_(file_name), path_(std::move(path)) {}

  void Read(const char* name, std::string* out);
  void Read(const char* name, bool* out);
  void Read(const char* name, double* out);
  void Read(const char* name, uint64_t* out);
  void Read(const char* name, int64_t* out, int64_t minimum = 0);
  void Read(const char* name, int32_t* out, int32_t minimum = 0);
  void Read(const char* name, std::vector<std::string>* out);
  void Read(const char* name, std::vector<int64_t>* out);
  void Read(const char* name, std::vector<double>* out);
  void Read(const char* name, std::map<std::string, std::string>* out);

  // Reads a list of objects: read(element_reader, &element) for each.
  template <typename T, typename F>
  void ReadObjects(const char* name, std::vector<T>* out, F read) {
    const nlohmann::json* list = Field(name, nlohmann::json::value_t::array);
    for (size_t i = 0; list != nullptr && i < list->size() && status_.ok(); ++i) {
      const std::string path = path_ + name + "[" + std::to_string(i) + "]";
      if (!(*list)[i].is_object()) return FailAt(path, "an object", (*list)[i]);
      JsonReader element((*list)[i], file_name_, path + ".");
      read(element, &out->emplace_back());
      status_ = element.status();
    }
  }

  const absl::Status& status() const { return status_; }
  // Records an error about a field of this object, unless one is recorded already.
  void Fail(const char* name, std::string_view expected, const nlohmann::json& found) {
    FailAt(path_ + name, expected, found);
  }

 private:
  void FailAt(const std::string& path, std::string_view expected, const nlohmann::json& found);
  // Returns the field, or null after recording that it is absent or of another type.
  const nlohmann::json* Field(const char* name, nlohmann::json::value_t type);
  bool Integer(const std::string& path, const nlohmann::json& value, int64_t minimum, int64_t maximum, int64_t* out);

  const nlohmann::json& object_;
  const std::string_view file_name_;
  const std::string path_;
  absl::Status status_;
};

// Returns pretty JSON with a final newline; bytes that are not UTF-8 become replacement characters. Its last field,
// "sha256", is the hash of all text before it. `json` is an object that is not empty.
std::string ToText(const nlohmann::ordered_json& json);

// Returns whether `name` may be joined to a folder: relative, no empty, "." or ".." segment, no zero byte.
bool IsSafeRelativeName(std::string_view name);

}  // namespace atl::storage
