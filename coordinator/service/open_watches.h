// Counts the open watches of each caller.
#pragma once

#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace atl::coordinator {

inline constexpr int kMostWatchesOfCaller = 100;

// Thread-safe.
class OpenWatches {
 public:
  // Counts one more watch of `caller`, until Close. RESOURCE_EXHAUSTED (TOO_MANY_WATCHES).
  absl::Status Open(const std::string& caller);
  void Close(const std::string& caller);

 private:
  absl::Mutex mutex_;
  std::map<std::string, int> open_ ABSL_GUARDED_BY(mutex_);  // by caller
};

}  // namespace atl::coordinator
