#include "router/service/caller_quotas.h"

#include <algorithm>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "router/policy/admission.h"

namespace atl::router {
namespace {

constexpr size_t kFewCallers = 64;

BucketRate RateOf(int64_t per_minute) {
  return {.per_second = static_cast<double>(per_minute) / 60, .burst = static_cast<double>(per_minute)};
}

absl::Status Exceeded(std::string_view message) {
  return MakeError(absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED", message);
}

// Returns the rejection of `images`, for which there is room after `wait`.
absl::Status TooFast(const std::string& subject, int64_t images, int64_t per_minute, absl::Duration wait) {
  if (wait == absl::InfiniteDuration()) {
    return Exceeded(fmt::format("'{}' may ask for {} images a minute, found a request for {}: ask for fewer at a time",
                                subject, per_minute, images));
  }
  const absl::Duration delay = absl::Ceil(wait, absl::Milliseconds(1));
  return WithRetryDelay(
      Exceeded(fmt::format("'{}' may ask for {} images a minute, found a request for {} more: try again in {}", subject,
                           per_minute, images, absl::FormatDuration(delay))),
      delay);
}

}  // namespace

absl::StatusOr<CallerQuotas::Share> CallerQuotas::Take(const std::string& subject, int64_t images,
                                                       const ImageQuota& quota, absl::Duration now) {
  if (images < 1 || (!quota.in_flight && !quota.per_minute)) return Share();
  absl::MutexLock lock(&mutex_);
  if (uses_.size() >= sweep_at_) {
    std::erase_if(uses_,
                  [now](const auto& entry) { return entry.second.under_way == 0 && entry.second.minute.IsFull(now); });
    sweep_at_ = std::max(kFewCallers, 2 * uses_.size());
  }
  Use& use = uses_[subject];
  if (quota.in_flight && images > *quota.in_flight - use.under_way) {
    return Exceeded(fmt::format("'{}' may have {} images under way at a time, found {} and a request for {} more",
                                subject, *quota.in_flight, use.under_way, images));
  }
  if (quota.per_minute) {
    const absl::Duration wait = use.minute.Take(RateOf(*quota.per_minute), now, static_cast<double>(images));
    if (wait > absl::ZeroDuration()) return TooFast(subject, images, *quota.per_minute, wait);
  }
  use.under_way += images;
  return Share(this, [this, subject, images](void*) { GiveBack(subject, images); });
}

void CallerQuotas::Refund(const std::string& subject, int64_t images, const ImageQuota& quota) {
  if (!quota.per_minute) return;
  absl::MutexLock lock(&mutex_);
  uses_[subject].minute.PutBack(RateOf(*quota.per_minute), static_cast<double>(images));
}

void CallerQuotas::GiveBack(const std::string& subject, int64_t images) {
  absl::MutexLock lock(&mutex_);
  uses_[subject].under_way -= images;
}

}  // namespace atl::router
