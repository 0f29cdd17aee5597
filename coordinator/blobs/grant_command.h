// The operator's program that makes keys for one task: its input, its execution, and the validation of its answer.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/spec/task.h"

namespace atl::coordinator {

// Returns the program's standard input: one JSON object (docs/formats.md). Pure.
std::string GrantRequestJson(const spec::TaskGrant& grant, std::string_view blob_root, absl::Duration lifetime);

// Parses the keys in the program's output: the JSON of a credential_process of the AWS tools. Returns them with empty
// prefixes. UNAVAILABLE (STORAGE_GRANT_FAILED) describes the fault and repeats no value. Pure.
absl::StatusOr<spec::StorageGrant> ParseGrantedKeys(std::string_view output, absl::Time now);

struct CommandOptions {
  // Run by /bin/sh.
  std::string command;
  std::string input;
  absl::Duration limit = absl::Seconds(8);
  // A descriptor that becomes readable when the program must end at once; -1: none.
  int cancel_fd = -1;
};

// Returns the program's standard output after it ended with exit code 0. UNAVAILABLE (STORAGE_GRANT_FAILED) for another
// end, for more than 64 KiB of output, after the limit, or when cancelled; then the program and its children are
// killed. Its standard error is this process's. Blocks.
absl::StatusOr<std::string> RunCommand(const CommandOptions& options);

}  // namespace atl::coordinator
