#include "router/service/running_requests.h"

#include <random>
#include <utility>

#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

std::string NewId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

}  // namespace

std::string RunningRequests::Add(std::function<void()> cancel) {
  std::string id = NewId();
  absl::MutexLock lock(&mutex_);
  running_.emplace(id, std::move(cancel));
  return id;
}

void RunningRequests::Remove(const std::string& id) {
  // The callback may hold large objects, so it is destroyed after the lock is released.
  std::function<void()> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  dropped.swap(found->second);
  running_.erase(found);
}

absl::Status RunningRequests::Cancel(const std::string& id) {
  std::function<void()> cancel;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) {
      return MakeErrorWithField(
          absl::StatusCode::kNotFound, "UNKNOWN_REQUEST", "request_id",
          fmt::format("request_id: expected the id of a request that is queued or sampled here, found {}", Quoted(id)));
    }
    cancel.swap(found->second);
    running_.erase(found);
  }
  cancel();
  return absl::OkStatus();
}

}  // namespace atl::router
