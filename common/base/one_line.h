// Shows any text as one line.
#pragma once

#include <string>
#include <string_view>

namespace atl {

// Returns the text with escapes in place of control characters ("\n", "\t", "\x1b", and the two-byte UTF-8 ones:
// "\xc2\x9b") and of bytes that are no UTF-8. Other letters stay.
std::string OneLine(std::string_view text);

}  // namespace atl
