// How much each caller has under way, and how much it asked for lately. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::router {

// What a caller may have of images; unset: as many as it likes.
struct ImageQuota {
  std::optional<int64_t> in_flight;
  std::optional<int64_t> per_minute;
};

// A caller's share. What is under way is given back when the last copy is destroyed, from any thread, also after the
// quotas are gone.
class QuotaShare {
 public:
  QuotaShare() = default;
  // The images were refused elsewhere: they count in no minute. Call once.
  void Refund() const;

 private:
  friend class CallerQuotas;
  struct Part;
  explicit QuotaShare(std::shared_ptr<const Part> part) : part_(std::move(part)) {}
  std::shared_ptr<const Part> part_;
};

class CallerQuotas {
 public:
  CallerQuotas();

  // For `images` more images of `subject`. RESOURCE_EXHAUSTED, reason QUOTA_EXCEEDED; where time helps it carries when
  // (RetryDelayOf). A minute's images may be asked for at once; then they come back one by one. `now` is of a monotonic
  // clock.
  absl::StatusOr<QuotaShare> Take(const std::string& subject, int64_t images, const ImageQuota& quota,
                                  absl::Duration now);

 private:
  friend class QuotaShare;
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace atl::router
