// The completion of one posted operation, shared by who ends it (a peer's thread, a progress thread, Abort) and the
// Work handle that waits for it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Thread-safe. The mutex is std's and not absl's: the packaged Abseil is not instrumented, so that the thread sanitizer
// could not see what it orders.
class Operation {
 public:
  // Ends the operation; the first call wins.
  void Finish(absl::Status status);

  bool Done() const;

  // When it ended, on Clock::Real()'s monotonic time.
  std::optional<absl::Duration> EndedAt() const;

  // The status, or nothing when `timeout` passed first. Blocks without spinning.
  std::optional<absl::Status> WaitFor(absl::Duration timeout) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::optional<absl::Status> status_;  // guarded by mutex_; set once
  absl::Duration ended_at_;             // guarded by mutex_; set with status_
};

// A Work over an Operation. When the wait times out it aborts `owner`, which must then finish the operation soon, and
// returns once it has: the buffer is free whatever Wait returned. `owner` is not touched once the operation has ended.
std::unique_ptr<Work> MakeWork(std::shared_ptr<Operation> operation, Transport* owner, std::string description);

// "send of 12 bytes along 0->1 chunk 1 forward", for messages.
std::string Describe(const char* verb, const Lane& lane, size_t bytes);

}  // namespace atl::transport
