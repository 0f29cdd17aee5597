// Time as a dependency. Everything that decides takes `now`; everything that waits takes a Clock, so that tests step
// time instead of sleeping.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace atl {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;

  // Wall time, for what people read and for what outlives the process.
  virtual absl::Time Now() = 0;

  // Time since an arbitrary start, never set back: for leases, timeouts and measurements.
  virtual absl::Duration Monotonic() = 0;

  // Waits until `condition` holds or the clock reaches `deadline` (of Monotonic). Returns whether it holds.
  // `mutex` is held on call and on return, and released while waiting.
  virtual bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration deadline) = 0;

  // The machine's clock, never destroyed. Tests set Now off by the seconds in the file ATOLL_CLOCK_OFFSET_FILE names.
  static Clock* Real();
};

}  // namespace atl
