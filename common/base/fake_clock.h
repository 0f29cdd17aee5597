// A clock for tests, which moves only when Advance is called.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace atl {

// Waiters wake when time passes their deadline or their condition holds.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1'700'000'000)) : start_(start) {}

  absl::Time Now() override { return start_ + Monotonic(); }

  absl::Duration Monotonic() override {
    absl::MutexLock lock(&mutex_);
    return elapsed_;
  }

  // Checks the condition and the fake time every millisecond of real time.
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration deadline) override {
    while (!condition.Eval()) {
      if (Monotonic() >= deadline) return false;
      mutex->AwaitWithTimeout(condition, absl::Milliseconds(1));
    }
    return true;
  }

  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mutex_);
    elapsed_ += by;
  }

 private:
  const absl::Time start_;
  absl::Mutex mutex_;
  absl::Duration elapsed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl
