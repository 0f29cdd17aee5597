// Child processes that a signal to stop ends, so that their parent can clear up behind them instead of dying with them.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <vector>

#include "absl/status/status.h"
#include "common/base/subprocess.h"

namespace atl::client {

// From its construction to its destruction SIGINT, SIGTERM and SIGHUP, unless this process ignores them, kill the
// children and nothing else. Not thread-safe; one at a time in a process, made by the thread that makes the
// children; nothing else in the process starts any.
class StoppableChildren {
 public:
  static constexpr size_t kMost = 64;

  StoppableChildren();
  ~StoppableChildren();  // kills those that are left, and waits for them
  StoppableChildren(const StoppableChildren&) = delete;
  StoppableChildren& operator=(const StoppableChildren&) = delete;

  // Errors of StartSubprocess, or what Interrupted says. At most kMost.
  absl::Status Start(const SubprocessOptions& options);
  // That were started and not awaited.
  size_t left() const { return left_; }
  struct Ended {
    size_t child = 0;  // in the order of Start
    int wait_status = 0;
  };
  // Blocks until one of those that are left has ended.
  Ended AwaitAny();
  // SIGKILL to all that run.
  void Kill() const;
  // CANCELLED (INTERRUPTED) after a signal to stop.
  absl::Status Interrupted() const;

 private:
  size_t count_ = 0;
  size_t left_ = 0;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace atl::client
