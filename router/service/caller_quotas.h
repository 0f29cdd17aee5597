// Limits how many images each caller has under way, and how many it requests per minute.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/token_bucket.h"

namespace atl::router {

// A caller's limits on images; unset: no limit.
struct ImageQuota {
  std::optional<int64_t> in_flight;
  std::optional<int64_t> per_minute;
};

// Thread-safe. Outlives the shares.
class CallerQuotas {
 public:
  // A caller's images, counted while this object lives. Null: they are not counted.
  using Share = std::shared_ptr<void>;

  // Takes `images` more images for `subject`. RESOURCE_EXHAUSTED (QUOTA_EXCEEDED); if waiting helps, it carries the
  // delay (RetryDelayOf). A minute's images may be requested at once; then they come back one by one. `now` is of a
  // monotonic clock.
  absl::StatusOr<Share> Take(const std::string& subject, int64_t images, const ImageQuota& quota, absl::Duration now);
  // Returns the images that were just taken to the minute's budget, because the request was rejected elsewhere.
  void Refund(const std::string& subject, int64_t images, const ImageQuota& quota);

 private:
  struct Use {
    int64_t under_way = 0;
    TokenBucket minute;
  };

  void GiveBack(const std::string& subject, int64_t images);

  absl::Mutex mutex_;
  std::map<std::string, Use> uses_ ABSL_GUARDED_BY(mutex_);  // by subject
  // At this number of subjects, those without running images and with a full minute's budget are forgotten.
  size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace atl::router
