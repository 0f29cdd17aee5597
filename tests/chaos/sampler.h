// Requests the same images from a router all the time: they may be missing, but must never differ.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace atl::chaos {

// Thread-safe.
class Sampler {
 public:
  Sampler(std::string router_address, std::string model, std::string version);
  ~Sampler();

  struct Counts {
    int64_t answered = 0;
    int64_t refused = 0;  // UNAVAILABLE and other errors after which a caller may retry
    // The first answer that is neither; empty without one.
    std::string wrong;
  };
  Counts counts() const;

 private:
  void Run();
  void AskOnce();

  const std::string router_address_;
  const std::string model_;
  const std::string version_;
  std::atomic<bool> stopping_ = false;
  std::string expected_;  // used only by the thread
  mutable absl::Mutex mutex_;
  Counts counts_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace atl::chaos
