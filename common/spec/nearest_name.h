// The known name that a mistyped one probably means. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace atl::spec {

// The known name with the fewest edits (insert, delete, replace, swap of neighbours), or "" when even that one needs
// more than a third of its letters.
std::string NearestName(std::string_view name, const std::vector<std::string>& known);

}  // namespace atl::spec
