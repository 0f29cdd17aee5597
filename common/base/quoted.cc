#include "common/base/quoted.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace atl {

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 60;
  const absl::string_view shown(text.data(), std::min(text.size(), kLongest));
  return "'" + absl::CHexEscape(shown) + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace atl
