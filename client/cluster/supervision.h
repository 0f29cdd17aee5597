// When to start a process that died again. Pure.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace atl::client {

// 0.5 s after a death, then twice as long each time, up to 10 s; back to the beginning once it lived for 30 s.
class RestartPolicy {
 public:
  void Started(absl::Time now) { started_ = now; }
  // When to start it again.
  absl::Time Died(absl::Time now);

 private:
  absl::Time started_ = absl::InfinitePast();
  int64_t deaths_ = 0;  // since it last lived that long
};

}  // namespace atl::client
