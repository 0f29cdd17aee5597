#include "worker/trainer/memory_meter.h"

#include <algorithm>

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace atl::trainer {

class MemoryMeter::Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*pointer*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    absl::MutexLock lock(&mutex_);
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live() const {
    absl::MutexLock lock(&mutex_);
    return live_;
  }
  int64_t peak() const {
    absl::MutexLock lock(&mutex_);
    return peak_;
  }
  void ResetPeak() {
    absl::MutexLock lock(&mutex_);
    peak_ = live_;
  }

 private:
  mutable absl::Mutex mutex_;
  int64_t live_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t peak_ ABSL_GUARDED_BY(mutex_) = 0;
};

class MemoryMeter::Installed {
 public:
  explicit Installed(std::shared_ptr<Counter> counter)
      : guard_(c10::DebugInfoKind::PROFILER_STATE, std::move(counter)) {}

 private:
  c10::DebugInfoGuard guard_;
};

MemoryMeter::MemoryMeter() : counter_(std::make_shared<Counter>()), installed_(std::make_unique<Installed>(counter_)) {}
MemoryMeter::~MemoryMeter() = default;

int64_t MemoryMeter::live_bytes() const {
  return counter_->live();
}

int64_t MemoryMeter::peak_bytes() const {
  return counter_->peak();
}

void MemoryMeter::ResetPeak() {
  counter_->ResetPeak();
}

}  // namespace atl::trainer
