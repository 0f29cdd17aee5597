#include "common/formats/file_list.h"

#include <algorithm>
#include <set>
#include <string>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::storage {

nlohmann::ordered_json FilesToJson(const std::vector<CheckpointFile>& files) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const CheckpointFile& file : files) {
    list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return list;
}

bool IsSha256Hex(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

void ReadFiles(JsonReader* reader, const char* field, std::vector<CheckpointFile>* out) {
  std::set<std::string> names;
  reader->ReadObjects(field, out, [&names](JsonReader& element, CheckpointFile* file) {
    element.Read("name", &file->name);
    element.Read("bytes", &file->bytes);
    element.Read("sha256", &file->sha256);
    if (!element.status().ok()) return;
    if (!IsSafeRelativeName(file->name)) element.Fail("name", "a relative name inside the folder", file->name);
    if (!IsSha256Hex(file->sha256)) element.Fail("sha256", "64 lower-case hex digits", file->sha256);
    if (!names.insert(file->name).second) element.Fail("name", "each file once", file->name);
  });
}

absl::Status CheckFormat(int found, int supported, std::string_view file_name) {
  if (found >= 1 && found <= supported) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "FORMAT_UNSUPPORTED",
                   fmt::format("{}: this build reads formats 1 to {}, found {}", file_name, supported, found));
}

}  // namespace atl::storage
