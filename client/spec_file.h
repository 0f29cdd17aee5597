// Job spec files of the command line.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/spec/spec.h"

namespace atl::client {

// FILE and --set, of every command that takes a job.
struct SpecFlags {
  std::string file;
  std::vector<std::string> set;
};
void AddSpecFlags(CLI::App* command, SpecFlags* flags);

// Reads a YAML file ("-": standard input), lays `set` ("training.steps=400") over it, and validates all that no dataset
// has to tell. INVALID_ARGUMENT, reason USAGE, for a `set` without '='.
absl::StatusOr<spec::JobSpec> ReadSpecFile(const SpecFlags& flags);

}  // namespace atl::client
