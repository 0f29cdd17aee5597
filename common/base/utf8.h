// Texts that messages and files can carry. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace atl {

struct Utf8Letter {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: none
};

// Returns the letter that `text` begins with. None if its bytes are no UTF-8, are longer than needed, or encode half of
// a surrogate pair.
Utf8Letter FirstLetter(std::string_view text);

// Returns whether the text is UTF-8 of characters only: no letter is longer than needed, half of a surrogate pair, or a
// code that stands for no character (U+FFFF).
bool IsPlainUtf8(std::string_view text);

}  // namespace atl
