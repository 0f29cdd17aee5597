// Starts programs as child processes.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace atl {

struct SubprocessOptions {
  std::vector<std::string> command;      // program by path, then its arguments
  std::vector<std::string> environment;  // "NAME=value"; replaces this process's value, other variables are inherited
  // Both outputs are appended to this file; empty: `output` and `error` say where they go.
  std::string log_file;
  std::optional<int> input;   // none: /dev/null
  std::optional<int> output;  // none: this process's own
  std::optional<int> error;
  // The kernel kills the child when the calling thread ends: call from a thread that lives as long as the child.
  bool dies_with_thread = true;
};

// Starts a process in a group of its own, so that Ctrl-C on a terminal reaches only the parent. The child blocks and
// ignores no signal and inherits no other descriptor. Does not wait; the caller reaps it. NOT_FOUND
// (PROGRAM_NOT_FOUND), UNKNOWN (FILE_ERROR) for the log, RESOURCE_EXHAUSTED (CANNOT_FORK). Thread-safe.
absl::StatusOr<pid_t> StartSubprocess(const SubprocessOptions& options);

// Returns "exited with code 3" or "was ended by signal 9".
std::string DescribeExit(int wait_status);

}  // namespace atl
