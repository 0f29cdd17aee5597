// Counts the bytes of live tensors, as reported by LibTorch's allocators.
#pragma once

#include <cstdint>
#include <memory>

namespace atl::trainer {

// From construction to destruction, counts allocations of the constructing thread and of the threads on which autograd
// works for it, and frees of this memory. Memory that other threads free stays counted. Construct and destroy on one
// thread, one at a time; reading is thread-safe.
class MemoryMeter {
 public:
  MemoryMeter();
  ~MemoryMeter();
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;

  int64_t live_bytes() const;
  // Returns the peak since construction or the last ResetPeak, which restarts from the live bytes.
  int64_t peak_bytes() const;
  void ResetPeak();

 private:
  class Counter;
  class Installed;
  const std::shared_ptr<Counter> counter_;
  const std::unique_ptr<Installed> installed_;
};

}  // namespace atl::trainer
