// The requests of this process by their ids, so that others than their own callers can end them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace atl::router {

// Thread-safe; none of it blocks.
class RunningRequests {
 public:
  // A new id: 128 random bits in hexadecimal, not to be guessed. `cancel` is called without a lock, from any thread, at
  // most once, and perhaps shortly after Remove: it must hold on to what it needs, weakly.
  std::string Add(std::function<void()> cancel);
  void Remove(const std::string& id);

  // NOT_FOUND with reason UNKNOWN_REQUEST for an id that was never given, or whose request is over or was cancelled.
  absl::Status Cancel(const std::string& id);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::function<void()>> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::router
