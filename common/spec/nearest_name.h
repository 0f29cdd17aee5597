// Suggests the known name for a mistyped one. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace atl::spec {

// Returns the known name with the fewest edits (insert, delete, replace, swap of neighbours), or "" if even that one
// needs more edits than a third of its letters.
std::string NearestName(std::string_view name, const std::vector<std::string>& known);

}  // namespace atl::spec
