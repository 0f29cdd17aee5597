// A real atoll-coordinator process that a test starts, kills and restarts on the same store.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::multiproc {

// Starts and waits are for one thread; address() may be called from any.
class CoordinatorProcess {
 public:
  // Store, blob store, log and port file lie in `folder`.
  explicit CoordinatorProcess(std::string folder) : folder_(std::move(folder)) {}
  ~CoordinatorProcess();  // SIGKILL

  // Starts the process; `failpoint` is its ATOLL_FAILPOINTS. Does not wait for it to serve.
  void Start(const std::string& failpoint = "", const std::vector<std::string>& more_flags = {});
  // Sends the signal, waits for the end and returns the wait status.
  int Stop(int signal);
  // Returns the wait status when the process has ended.
  std::optional<int> Ended();
  // Waits until the process ended; unset when it has not after `timeout`.
  std::optional<int> AwaitEnd(absl::Duration timeout);

  // Returns the "host:port" of the process that served last; empty before the first.
  std::string address() const;
  std::string blob_root() const { return "file://" + folder_ + "/blobs"; }
  // Returns the standard error of all starts so far.
  std::string log() const;

 private:
  const std::string folder_;
  pid_t pid_ = 0;
};

}  // namespace atl::multiproc
