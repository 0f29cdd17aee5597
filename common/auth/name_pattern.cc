#include "common/auth/name_pattern.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_split.h"

namespace atl::rpc {

bool Matches(std::string_view pattern, std::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(pattern), '*');
  const std::string& first = parts.front();
  const std::string& last = parts.back();
  if (parts.size() == 1) return name == first;
  if (name.size() < first.size() + last.size() || !name.starts_with(first) || !name.ends_with(last)) return false;
  name = name.substr(first.size(), name.size() - first.size() - last.size());
  // The parts between stars, each where it comes first.
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const size_t at = name.find(parts[i]);
    if (at == std::string_view::npos) return false;
    name.remove_prefix(at + parts[i].size());
  }
  return true;
}

bool MatchesAny(std::span<const std::string> patterns, std::string_view name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return Matches(pattern, name); });
}

}  // namespace atl::rpc
