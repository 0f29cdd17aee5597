// Texts that are shown as one line, whoever wrote them.
#pragma once

#include <string>
#include <string_view>

namespace atl {

// The text with escapes ("\n", "\x1b") in place of its control characters; what is not ASCII stays.
inline std::string OneLine(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      line += c;
    } else if (c == '\n') {
      line += "\\n";
    } else {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 0xF]};
    }
  }
  return line;
}

}  // namespace atl
