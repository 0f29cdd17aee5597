// Texts that are shown as one line, whoever wrote them.
#pragma once

#include <string>
#include <string_view>

namespace atl {

// The text with escapes in place of its control characters ("\n", "\t", "\x1b", and those that UTF-8 writes in two
// bytes: "\xc2\x9b") and of bytes that are no UTF-8. Other letters stay.
std::string OneLine(std::string_view text);

}  // namespace atl
