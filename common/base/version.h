// The version of this build, shown to users and sent when workers register. Equals the version in CMakeLists.txt.
#pragma once

#include <string_view>

namespace atl {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace atl
