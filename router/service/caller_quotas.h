// How much each caller has under way, and how much it asked for lately.
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

// What a caller may have of images; unset: as many as it likes.
struct ImageQuota {
  std::optional<int64_t> in_flight;
  std::optional<int64_t> per_minute;
};

// Thread-safe. Outlives the shares.
class CallerQuotas {
 public:
  // A caller's images while it lives. Null: they are not counted.
  using Share = std::shared_ptr<void>;

  // For `images` more images of `subject`. RESOURCE_EXHAUSTED, reason QUOTA_EXCEEDED; where time helps it carries when
  // (RetryDelayOf). A minute's images may be asked for at once; then they come back one by one. `now` is of a monotonic
  // clock.
  absl::StatusOr<Share> Take(const std::string& subject, int64_t images, const ImageQuota& quota, absl::Duration now);
  // The images that were just taken were refused elsewhere: they count in no minute.
  void Refund(const std::string& subject, int64_t images, const ImageQuota& quota);

 private:
  struct Use {
    int64_t under_way = 0;
    TokenBucket minute;
  };

  void GiveBack(const std::string& subject, int64_t images);

  absl::Mutex mutex_;
  std::map<std::string, Use> uses_ ABSL_GUARDED_BY(mutex_);  // by subject
  // At so many subjects those that have nothing under way and a full minute again are forgotten.
  size_t sweep_at_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace atl::router
