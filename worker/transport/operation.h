// The completion of one posted operation. The side that ends it (a peer's thread, a progress thread, Abort) shares it
// with the Work handle that waits for it.
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

// Thread-safe. The mutex is std's and not absl's, because the packaged Abseil is not instrumented: the thread sanitizer
// could not see the order that it establishes.
class Operation {
 public:
  // Ends the operation; the first call wins.
  void Finish(absl::Status status);

  bool Done() const;

  // Returns the end time on Clock::Real()'s monotonic time.
  std::optional<absl::Duration> EndedAt() const;

  // Returns the status, or nullopt after `timeout`. Blocks without spinning.
  std::optional<absl::Status> WaitFor(absl::Duration timeout) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::optional<absl::Status> status_;  // guarded by mutex_; set once
  absl::Duration ended_at_;             // guarded by mutex_; set with status_
};

// Returns a Work over an Operation. When its wait times out it aborts `owner`, which must then finish the operation
// soon, and returns after that: when Wait returns, the buffer is free. `owner` is not touched after the operation has
// ended.
std::unique_ptr<Work> MakeWork(std::shared_ptr<Operation> operation, Transport* owner, std::string description);

// Returns "send of 12 bytes along 0->1 chunk 1 forward", for messages.
std::string Describe(const char* verb, const Lane& lane, size_t bytes);

}  // namespace atl::transport
