// Texts of which only the beginning is kept.
#pragma once

#include <cstddef>
#include <string_view>

namespace atl {

// The first `most` bytes of the text, a view into it. A letter of UTF-8 that does not fit whole is left out: half of it
// would make every message unreadable that holds the text.
inline std::string_view CutText(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace atl
