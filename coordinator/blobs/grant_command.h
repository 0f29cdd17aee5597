// The operator's program that makes keys for one task: what it is asked, how it is run, and what its answer must be.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/spec/task.h"

namespace atl::coordinator {

// What the program reads on its standard input, as one JSON object (docs/formats.md). Pure.
std::string GrantRequestJson(const spec::TaskGrant& grant, std::string_view blob_root, absl::Duration lifetime);

// The keys in what the program printed: the JSON of a credential_process of the AWS tools. Their prefixes are empty.
// UNAVAILABLE (STORAGE_GRANT_FAILED) names what is wrong and repeats no value. Pure.
absl::StatusOr<spec::StorageGrant> ParseGrantedKeys(std::string_view output, absl::Time now);

struct CommandOptions {
  // Run by /bin/sh.
  std::string command;
  std::string input;
  absl::Duration limit = absl::Seconds(8);
  // A descriptor that turns readable when the program is to end at once; -1: none does.
  int cancel_fd = -1;
};

// What the program wrote to its standard output, once it ended with exit code 0. UNAVAILABLE (STORAGE_GRANT_FAILED) for
// another end, for more than 64 KiB of output, after the limit, or when cancelled; then the program and what it started
// are killed. Its standard error is this process's. Blocks.
absl::StatusOr<std::string> RunCommand(const CommandOptions& options);

}  // namespace atl::coordinator
