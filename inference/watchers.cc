#include "inference/watchers.h"

#include <utility>
#include <vector>

namespace atl::router {

int64_t Watchers::Add(std::function<void()> changed) {
  absl::MutexLock lock(&mutex_);
  watchers_.emplace(next_, std::move(changed));
  return next_++;
}

void Watchers::Remove(int64_t watcher) {
  absl::MutexLock lock(&mutex_);
  watchers_.erase(watcher);
  mutex_.Await(absl::Condition(
      +[](int64_t* calls) { return *calls == 0; }, &calls_));
}

void Watchers::Notify() {
  std::vector<std::function<void()>> calls;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, changed] : watchers_) calls.push_back(changed);
    ++calls_;
  }
  for (const std::function<void()>& call : calls) call();
  absl::MutexLock lock(&mutex_);
  --calls_;
}

}  // namespace atl::router
