// Quotes untrusted texts in messages.
#pragma once

#include <string>
#include <string_view>

namespace atl {

// Returns the text in quotes, on one line: other than printable ASCII is escaped, and a long text is truncated.
std::string Quoted(std::string_view text);

}  // namespace atl
