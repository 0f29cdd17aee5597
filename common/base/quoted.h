// Texts of strangers in messages.
#pragma once

#include <string>
#include <string_view>

namespace atl {

// In quotes, on one line: what is no printable ASCII becomes an escape, and of a long text only the beginning stays.
std::string Quoted(std::string_view text);

}  // namespace atl
