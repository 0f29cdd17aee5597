#include "coordinator/core/executor.h"

#include <limits>
#include <utility>

namespace atl::coordinator {

Executor::Executor(Clock* clock, Options options) : clock_(*clock), options_(std::move(options)) {
  thread_ = std::thread([this] { Run(); });
}

Executor::~Executor() {
  Stop();
}

bool Executor::Post(std::function<void()> function) {
  return Put(std::move(function), options_.capacity);
}

bool Executor::PostEnd(std::function<void()> function) {
  return Put(std::move(function), std::numeric_limits<size_t>::max());
}

bool Executor::Put(std::function<void()> function, size_t capacity) {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || queue_.size() >= capacity) return false;
  queue_.push_back({std::move(function), clock_.Monotonic()});
  return true;
}

void Executor::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Executor::Run() {
  while (true) {
    const absl::Duration wake = options_.next_wake ? options_.next_wake() : absl::InfiniteDuration();
    Posted next;
    {
      absl::MutexLock lock(&mutex_);
      clock_.AwaitUntil(&mutex_, absl::Condition(this, &Executor::HasWork), wake);
      if (!queue_.empty()) {
        next = std::move(queue_.front());
        queue_.pop_front();
      } else if (stopping_) {
        return;
      }
    }
    if (next.function) {
      if (options_.waited) options_.waited(clock_.Monotonic() - next.at);
      next.function();
    }
    if (options_.after_each) options_.after_each();
  }
}

}  // namespace atl::coordinator
