// Texts that messages and files can carry. Pure.
#pragma once

#include <string_view>

namespace atl {

// Whether the text is UTF-8 of characters only: no letter is written longer than needed, and none is half of a pair or
// a code that stands for no character (U+FFFF).
bool IsPlainUtf8(std::string_view text);

}  // namespace atl
