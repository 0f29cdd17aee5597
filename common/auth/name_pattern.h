// Names with *, as "eu-*". Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace atl::rpc {

// Whether `name` is `pattern`, in which * stands for any letters, also none.
bool Matches(std::string_view pattern, std::string_view name);
bool MatchesAny(std::span<const std::string> patterns, std::string_view name);

}  // namespace atl::rpc
