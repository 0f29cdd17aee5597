// A child process of a test: started with its output in a log file, and always killed when the test ends.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::testing_cluster {

// Not thread-safe. The thread that starts it must outlive it (PR_SET_PDEATHSIG).
class Process {
 public:
  // `environment`: "NAME=value", added to this process's environment; replaces variables of the same name.
  Process(std::vector<std::string> command, std::string log_path, std::vector<std::string> environment = {});
  ~Process();  // SIGKILL, and waits
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& log_path() const { return log_path_; }
  // Returns its whole output so far.
  std::string Log() const;

  void Signal(int signal) const;
  bool Running();
  // Waits for its end. Returns the exit code, minus the signal's number if a signal ended it, or nothing after
  // `timeout`.
  std::optional<int> Wait(absl::Duration timeout);
  // Sends SIGKILL, and waits.
  void Kill();

 private:
  const std::string log_path_;
  pid_t pid_ = -1;
  std::optional<int> exit_;
};

// Polls until `condition` holds; false after `timeout`.
template <typename Condition>
bool Await(absl::Duration timeout, Condition condition);

}  // namespace atl::testing_cluster

#include "absl/time/clock.h"

namespace atl::testing_cluster {

template <typename Condition>
bool Await(absl::Duration timeout, Condition condition) {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    if (condition()) return true;
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(20));
  }
}

}  // namespace atl::testing_cluster
