// SIGTERM and SIGINT as two calls: stop well, and, when that takes too long or a second signal comes, stop now.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace atl::worker {

// Owns one thread, joined by the destructor. Both functions are called on it.
class StopSignals {
 public:
  // Blocks the signals in this thread and all that it starts: call it first in main.
  static void Block();

  StopSignals(std::function<void(const std::string& signal)> stop, std::function<void()> stop_now,
              absl::Duration grace);
  ~StopSignals();

 private:
  void Wait();

  const std::function<void(const std::string&)> stop_;
  const std::function<void()> stop_now_;
  const absl::Duration grace_;
  std::thread thread_;
};

}  // namespace atl::worker
