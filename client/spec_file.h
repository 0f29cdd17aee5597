// Job spec files of the command line.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/spec.h"

namespace atl::client {

// Reads a YAML file ("-": standard input) and lays `set` ("training.steps=400") over it. INVALID_ARGUMENT, reason
// USAGE, for a `set` without '='.
absl::StatusOr<spec::JobSpec> ReadSpecFile(const std::string& file, const std::vector<std::string>& set);

}  // namespace atl::client
