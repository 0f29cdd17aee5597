// Counts the bytes that live tensors hold, from what LibTorch's allocators report.
#pragma once

#include <cstdint>
#include <memory>

namespace atl::trainer {

// From its construction to its destruction, allocations of the thread that made it, and of the threads on which
// autograd works for it, are counted; and frees of what was allocated so. Freed elsewhere, memory stays counted.
// Construct and destroy on one thread, one at a time; reading is thread-safe.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t live_bytes() const;
  // The most since construction or the last ResetPeak, which starts again from what is live.
  int64_t peak_bytes() const;
  void ResetPeak();

 private:
  class Counter;
  class Installed;
  const std::shared_ptr<Counter> counter_;
  const std::unique_ptr<Installed> installed_;
};

}  // namespace atl::trainer
