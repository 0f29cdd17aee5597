#include "common/base/one_line.h"

#include <algorithm>

#include "common/base/utf8.h"

namespace atl {

std::string OneLine(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const auto [code, bytes] = FirstLetter(text);
    const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    const size_t shown = control ? 0 : bytes;
    const auto byte = static_cast<unsigned char>(text.front());
    if (shown > 0) {
      line += text.substr(0, shown);
    } else if (byte == '\n' || byte == '\t' || byte == '\r') {
      line += {'\\', byte == '\n' ? 'n' : byte == '\t' ? 't' : 'r'};
    } else {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xF]};
    }
    text.remove_prefix(std::max<size_t>(shown, 1));
  }
  return line;
}

}  // namespace atl
