// Threads that evaluate networks, one batch per thread. Each computes with one LibTorch thread: batches of different
// experts scale over cores better than the small products inside one of them.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace atl::router {

// Thread-safe; one RunAll at a time, others wait. The destructor joins the threads.
class ComputePool {
 public:
  // `threads` >= 1; with 1 the caller's thread does the work.
  explicit ComputePool(int threads);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  // Runs body(0) … body(count - 1), in any order, the caller's thread among the workers; returns when all are done.
  // `body` must not throw and must not call the pool.
  void RunAll(size_t count, const std::function<void(size_t)>& body);

 private:
  void Work();
  void RunSome(const std::function<void(size_t)>& body);

  absl::Mutex run_mutex_;  // one RunAll at a time
  absl::Mutex mutex_;
  const std::function<void(size_t)>* body_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace atl::router
