// A process that dies with this one, and whose output goes to a log file.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::client {

struct ChildOptions {
  std::vector<std::string> command;                              // program by path, then its arguments
  std::string log_file;                                          // stdout and stderr are appended to it
  std::vector<std::pair<std::string, std::string>> environment;  // set beside the inherited ones
};

// Starts a process in a group of its own (Ctrl-C on the terminal reaches only the parent, which then stops its
// children in order), with no signal blocked. The kernel kills it when the calling thread ends: call from a thread
// that lives as long as the process. Does not wait.
absl::StatusOr<pid_t> StartChild(const ChildOptions& options);

// "exited with code 3" or "was ended by signal 9".
std::string DescribeExit(int wait_status);

}  // namespace atl::client
