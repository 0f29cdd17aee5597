#include "common/base/one_line.h"

#include <algorithm>

namespace atl {
namespace {

bool IsPlain(unsigned char byte) {
  return byte >= 0x20 && byte < 0x7F;
}

// Bytes of the letter that `text` begins with, if it is to be shown as it is; else 0.
size_t ShownLetter(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return IsPlain(static_cast<unsigned char>(first)) ? 1 : 0;
  // What the second byte may be keeps out letters that are written longer than needed, halves of pairs, and U+0080 to
  // U+009F, which are control characters.
  unsigned low = 0x80;
  unsigned high = 0xBF;
  size_t size = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    size = 2;
    if (first == 0xC2) low = 0xA0;
  } else if (first >= 0xE0 && first <= 0xEF) {
    size = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    size = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  if (size == 0 || byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < size; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return size;
}

}  // namespace

std::string OneLine(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const size_t shown = ShownLetter(text);
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
