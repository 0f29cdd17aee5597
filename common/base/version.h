// The version of this build, as people and registering workers see it. Equals the project's version in CMakeLists.txt.
#pragma once

#include <string_view>

namespace atl {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace atl
