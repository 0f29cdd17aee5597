#include <algorithm>
#include <charconv>
#include <utility>

#include "common/base/errors.h"
#include "common/dataset/import/import_source.h"
#include "fmt/format.h"

namespace atl::dataset {

LabelText ParseLabel(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  text = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  LabelText label{.text = std::string(text)};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label.number);
  label.is_number = error == std::errc() && end == text.data() + text.size();
  return label;
}

absl::StatusOr<LabelMap> LabelMap::OfNames(std::vector<std::string> names, std::string_view file) {
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  if (static_cast<int64_t>(names.size()) > kMaxClasses) {
    return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_CLASSES",
                     fmt::format("{}: expected at most {} classes, found {}; are the labels captions?", file,
                                 kMaxClasses, names.size()));
  }
  LabelMap map;
  map.named_ = true;
  for (const std::string& name : names) map.numbers_.emplace(name, static_cast<int64_t>(map.numbers_.size()));
  map.names_ = std::move(names);
  return map;
}

bool LabelMap::Resolve(const LabelText& label, int64_t* number, std::string* problem) const {
  if (named_) {
    const auto found = numbers_.find(label.text);
    if (found == numbers_.end()) {
      *problem = fmt::format("label: expected a class name, found '{}'", label.text);
      return false;
    }
    *number = found->second;
    return true;
  }
  if (!label.is_number || label.number < 0 || label.number >= kMaxClasses) {
    *problem =
        fmt::format("label: expected an integer from 0 to {}, found '{}'", kMaxClasses - 1, label.text.substr(0, 60));
    return false;
  }
  *number = label.number;
  return true;
}

}  // namespace atl::dataset
