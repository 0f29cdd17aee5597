// Job spec files of the command line.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/spec/spec.h"

namespace atl::client {

// FILE and --set, which every command that takes a job shares.
struct SpecFlags {
  std::string file;
  std::vector<std::string> set;
};
void AddSpecFlags(CLI::App* command, SpecFlags* flags);

// Reads a YAML file ("-": standard input), applies `set` ("training.steps=400"), and validates everything that does not
// depend on the dataset. INVALID_ARGUMENT (USAGE) for a `set` without '='.
absl::StatusOr<spec::JobSpec> ReadSpecFile(const SpecFlags& flags);

}  // namespace atl::client
