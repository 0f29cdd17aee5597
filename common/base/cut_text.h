// Truncates texts.
#pragma once

#include <cstddef>
#include <string_view>

namespace atl {

// Returns the first `most` bytes of the text, a view into it. Leaves out a UTF-8 letter that does not fit whole,
// because half of it would make every message that holds the text unreadable.
inline std::string_view CutText(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

}  // namespace atl
