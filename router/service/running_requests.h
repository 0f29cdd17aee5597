// The requests of this process by their ids, so that other callers than their own can cancel them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace atl::router {

// Thread-safe; no method blocks.
class RunningRequests {
 public:
  // Returns a new, unguessable id: 128 random bits in hexadecimal. `cancel` is called without a lock, from any thread,
  // at most once, and perhaps shortly after Remove, so it must hold weak references.
  std::string Add(std::function<void()> cancel);
  void Remove(const std::string& id);

  // NOT_FOUND (UNKNOWN_REQUEST) for an unknown id, or for a request that is over or was cancelled.
  absl::Status Cancel(const std::string& id);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::function<void()>> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::router
