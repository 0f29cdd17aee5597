#include "router/engine/compute_pool.h"

#include <ATen/Parallel.h>

namespace atl::router {

ComputePool::ComputePool(int threads) {
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

ComputePool::~ComputePool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void ComputePool::RunAll(size_t count, const std::function<void(size_t)>& body) {
  if (count == 0) return;
  absl::MutexLock one_at_a_time(&run_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    body_ = &body;
    next_ = 0;
    count_ = count;
    unfinished_ = count;
  }
  at::set_num_threads(1);
  RunSome(body);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](size_t* unfinished) { return *unfinished == 0; }, &unfinished_));
  body_ = nullptr;
}

void ComputePool::RunSome(const std::function<void(size_t)>& body) {
  absl::MutexLock lock(&mutex_);
  while (next_ < count_) {
    const size_t mine = next_++;
    mutex_.Unlock();
    body(mine);
    mutex_.Lock();
    --unfinished_;
  }
}

void ComputePool::Work() {
  at::set_num_threads(1);
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || next_ < count_; };
  while (true) {
    const std::function<void(size_t)>* body = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      body = body_;
    }
    RunSome(*body);
  }
}

}  // namespace atl::router
