// One thread that runs posted functions in order. It owns an object that is not thread-safe, or runs work that blocks
// and so must not run on a gRPC thread.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace atl::coordinator {

// Thread-safe.
class Executor {
 public:
  struct Options {
    // The most functions that may wait; Post rejects more.
    size_t capacity = 4096;
    // Both run on the thread. `after_each` runs after every posted function and whenever the time `next_wake`, on the
    // clock's monotonic time, is reached.
    std::function<void()> after_each;
    std::function<absl::Duration()> next_wake;
    // Called on the thread with the time that the function to run next waited in the queue.
    std::function<void(absl::Duration)> waited;
  };

  Executor(Clock* clock, Options options);
  ~Executor();  // Stop

  // Returns false, without effect, if the queue is full or the executor stopped.
  bool Post(std::function<void()> function);

  // Like Post, but also accepts when the queue is full: for the end of work that was begun here, of which there is at
  // most as much as was posted. Returns false if the executor stopped.
  bool PostEnd(std::function<void()> function);

  // Runs the posted functions, then ends and joins the thread. Must not be called on that thread.
  void Stop();

 private:
  struct Posted {
    std::function<void()> function;
    absl::Duration at;  // monotonic
  };

  bool Put(std::function<void()> function, size_t capacity);
  void Run();
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); }

  Clock& clock_;
  const Options options_;
  absl::Mutex mutex_;
  std::deque<Posted> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::coordinator
