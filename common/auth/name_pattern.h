// Name patterns with *, as "eu-*". Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace atl::rpc {

// Returns whether `name` matches `pattern`, in which * stands for any letters or none.
bool Matches(std::string_view pattern, std::string_view name);
bool MatchesAny(std::span<const std::string> patterns, std::string_view name);

}  // namespace atl::rpc
