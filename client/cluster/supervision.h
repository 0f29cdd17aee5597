// Decides when to restart a process that keeps dying. Pure.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace atl::client {

// Restart delay: 0.5 s after a death, doubled each time, up to 10 s; 0.5 s again once the process has lived for 30 s.
class RestartPolicy {
 public:
  void Started(absl::Time now) { started_ = now; }
  // Returns the time at which to restart it.
  absl::Time Died(absl::Time now);

 private:
  absl::Time started_ = absl::InfinitePast();
  int64_t deaths_ = 0;  // since it last lived that long
};

}  // namespace atl::client
