// The streams of watches that are open: how many each caller has, and which of them nobody reads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace atl::coordinator {

// A stream that can be cut off. Thread-safe.
class WatchStream {
 public:
  virtual ~WatchStream() = default;
  // Since when its reader has not taken what is sent to it, on the clock's monotonic time; infinite when nothing waits.
  virtual absl::Duration unread_since() = 0;
  virtual void Cut() = 0;
};

struct WatchLimits {
  int per_caller = 100;
  absl::Duration max_unread = absl::Seconds(30);
};

// Thread-safe.
class OpenWatches {
 public:
  explicit OpenWatches(WatchLimits limits = {}) : limits_(limits) {}

  // A place for one more stream of `caller`, for Open and Close. RESOURCE_EXHAUSTED, reason TOO_MANY_WATCHES.
  absl::StatusOr<int64_t> Admit(std::string_view caller);
  void Open(int64_t ticket, std::weak_ptr<WatchStream> stream);
  void Close(int64_t ticket);

  // Cuts off streams that were not read for longer than the limit; how many.
  int CutUnread(absl::Duration now);
  // When CutUnread is to be called next, of the streams as they are; infinite when none is open.
  absl::Duration NextLook(absl::Duration now);

 private:
  struct Entry {
    std::string caller;
    std::weak_ptr<WatchStream> stream;
  };

  const WatchLimits limits_;
  absl::Mutex mutex_;
  int64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int64_t, Entry> open_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int, std::less<>> by_caller_ ABSL_GUARDED_BY(mutex_);
  absl::Duration looked_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
};

}  // namespace atl::coordinator
