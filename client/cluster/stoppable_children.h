// Child processes that a stop signal kills, so that their parent can clean up after them instead of dying with them.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <vector>

#include "absl/status/status.h"
#include "common/base/subprocess.h"

namespace atl::client {

// From its construction to its destruction SIGINT, SIGTERM and SIGHUP kill the children and nothing else, unless this
// process ignores these signals. Not thread-safe. A process has at most one at a time, made by the thread that makes
// the children; no other code in the process starts children.
class StoppableChildren {
 public:
  static constexpr size_t kMost = 64;

  StoppableChildren();
  ~StoppableChildren();  // kills those that are left, and waits for them
  StoppableChildren(const StoppableChildren&) = delete;
  StoppableChildren& operator=(const StoppableChildren&) = delete;

  // Starts a child, at most kMost in all. Errors of StartSubprocess, or of Interrupted.
  absl::Status Start(const SubprocessOptions& options);
  // The number of children that were started and not awaited.
  size_t left() const { return left_; }
  struct Ended {
    size_t child = 0;  // in the order of Start
    int wait_status = 0;
  };
  // Blocks until one of the remaining children has ended.
  Ended AwaitAny();
  // Sends SIGKILL to all running children.
  void Kill() const;
  // Returns CANCELLED (INTERRUPTED) after a stop signal.
  absl::Status Interrupted() const;

 private:
  size_t count_ = 0;
  size_t left_ = 0;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace atl::client
