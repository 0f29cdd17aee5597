// Profiles as JSON: docs/formats.md, "Profiles".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/planner/profile.h"

namespace atl::storage {

inline constexpr int kProfileFormat = 1;

std::string ToJson(const planner::Profile& profile);

// DATA_LOSS (FILE_MALFORMED) names file and field if the text is no profile, or planner::CheckProfile refuses it;
// FAILED_PRECONDITION (FORMAT_UNSUPPORTED) for another format.
absl::StatusOr<planner::Profile> ParseProfile(std::string_view json, std::string_view file_name);

}  // namespace atl::storage
