#include "router/service/caller_quotas.h"

#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {

struct CallerQuotas::State {
  absl::Mutex mutex;
  std::map<std::string, int64_t> images ABSL_GUARDED_BY(mutex);  // under way, by subject; above 0
};

CallerQuotas::CallerQuotas() : state_(std::make_shared<State>()) {}

absl::StatusOr<QuotaShare> CallerQuotas::Take(const std::string& subject, int64_t images, std::optional<int64_t> most) {
  // Who has no limit is not counted.
  if (!most) return QuotaShare();
  absl::MutexLock lock(&state_->mutex);
  int64_t& under_way = state_->images[subject];
  if (images > *most - under_way) {
    const int64_t now = under_way;
    if (now == 0) state_->images.erase(subject);
    return MakeError(absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
                     fmt::format("'{}' may have {} images under way at a time, found {} and a request for {} more",
                                 subject, *most, now, images));
  }
  under_way += images;
  return QuotaShare(nullptr, [state = state_, subject, images](const void*) {
    absl::MutexLock back(&state->mutex);
    const auto found = state->images.find(subject);
    if ((found->second -= images) == 0) state->images.erase(found);
  });
}

}  // namespace atl::router
