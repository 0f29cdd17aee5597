#include "router/service/caller_quotas.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/token_bucket.h"
#include "fmt/format.h"
#include "router/policy/admission.h"

namespace atl::router {
namespace {

constexpr size_t kFewCallers = 64;

struct Use {
  int64_t under_way = 0;
  TokenBucket minute;
};

BucketRate RateOf(int64_t per_minute) {
  return {.per_second = static_cast<double>(per_minute) / 60, .burst = static_cast<double>(per_minute)};
}

absl::Status Exceeded(std::string_view message) {
  return MakeError(absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED", message);
}

// Of `images`, for which there is room after `wait`.
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

struct CallerQuotas::State {
  // Forgets who has nothing under way and a full minute again.
  void Sweep(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (uses.size() < sweep_at) return;
    std::erase_if(uses,
                  [now](const auto& entry) { return entry.second.under_way == 0 && entry.second.minute.IsFull(now); });
    sweep_at = std::max(kFewCallers, 2 * uses.size());
  }

  absl::Mutex mutex;
  std::map<std::string, Use> uses ABSL_GUARDED_BY(mutex);  // by subject
  size_t sweep_at ABSL_GUARDED_BY(mutex) = kFewCallers;
};

struct QuotaShare::Part {
  ~Part() {
    absl::MutexLock lock(&state->mutex);
    const auto found = state->uses.find(subject);
    found->second.under_way -= images;
    // What was asked for in the last minute goes on to count.
    const bool counts = !found->second.minute.IsFull(-absl::InfiniteDuration());
    if (found->second.under_way == 0 && !counts) state->uses.erase(found);
  }

  const std::shared_ptr<CallerQuotas::State> state;
  const std::string subject;
  const int64_t images;
  const std::optional<int64_t> per_minute;
};

void QuotaShare::Refund() const {
  if (part_ == nullptr || !part_->per_minute) return;
  absl::MutexLock lock(&part_->state->mutex);
  part_->state->uses.at(part_->subject).minute.PutBack(RateOf(*part_->per_minute), static_cast<double>(part_->images));
}

CallerQuotas::CallerQuotas() : state_(std::make_shared<State>()) {}

absl::StatusOr<QuotaShare> CallerQuotas::Take(const std::string& subject, int64_t images, const ImageQuota& quota,
                                              absl::Duration now) {
  // Who has no limit is not counted.
  if (images < 1 || (!quota.in_flight && !quota.per_minute)) return QuotaShare();
  absl::MutexLock lock(&state_->mutex);
  state_->Sweep(now);
  const auto known = state_->uses.find(subject);
  Use use = known == state_->uses.end() ? Use() : known->second;
  if (quota.in_flight && images > *quota.in_flight - use.under_way) {
    return Exceeded(fmt::format("'{}' may have {} images under way at a time, found {} and a request for {} more",
                                subject, *quota.in_flight, use.under_way, images));
  }
  if (quota.per_minute) {
    const absl::Duration wait = use.minute.Take(RateOf(*quota.per_minute), now, static_cast<double>(images));
    if (wait > absl::ZeroDuration()) return TooFast(subject, images, *quota.per_minute, wait);
  }
  use.under_way += images;
  state_->uses[subject] = use;
  return QuotaShare(std::shared_ptr<const QuotaShare::Part>(
      new QuotaShare::Part{.state = state_, .subject = subject, .images = images, .per_minute = quota.per_minute}));
}

}  // namespace atl::router
