#include "router/policy/admission.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

constexpr char kRetryDelayUrl[] = "atoll/retry_delay";

absl::Duration RetryDelay(const AdmissionState& state, const AdmissionOptions& options) {
  const absl::Duration backlog = state.time_per_image_step * static_cast<double>(state.image_steps_left);
  return std::clamp(backlog / 2, options.min_retry_delay, options.max_retry_delay);
}

}  // namespace

AdmissionDecision Admit(int64_t images, const AdmissionState& state, const AdmissionOptions& options) {
  AdmissionDecision decision;
  decision.position = state.images_in_flight + state.queued_images;
  if (state.queued_requests >= options.max_queued_requests) {
    decision.reason = fmt::format("{} requests wait already, expected fewer than {}", state.queued_requests,
                                  options.max_queued_requests);
  } else if (state.queued_images > 0 && state.queued_images + images > options.max_queued_images) {
    decision.reason = fmt::format("{} images wait already and the request has {}, expected at most {} in all",
                                  state.queued_images, images, options.max_queued_images);
  } else {
    decision.admitted = true;
    decision.reason = "there is room in the queue";
    return decision;
  }
  decision.retry_delay = RetryDelay(state, options);
  return decision;
}

size_t CountJoining(std::span<const int64_t> queued, int64_t images_in_flight, const AdmissionOptions& options) {
  size_t joining = 0;
  for (const int64_t images : queued) {
    if (images_in_flight > 0 && images_in_flight + images > options.max_images_in_flight) break;
    images_in_flight += images;
    ++joining;
  }
  return joining;
}

absl::Status RejectionStatus(const AdmissionDecision& decision) {
  const absl::Duration delay = absl::Ceil(decision.retry_delay, absl::Milliseconds(1));
  absl::Status status =
      MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                fmt::format("the queue is full: {}; try again in {}", decision.reason, absl::FormatDuration(delay)));
  status.SetPayload(kRetryDelayUrl, absl::Cord(absl::FormatDuration(delay)));
  return status;
}

absl::Duration RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryDelayUrl);
  absl::Duration delay;
  if (!payload || !absl::ParseDuration(std::string(*payload), &delay)) return absl::ZeroDuration();
  return delay;
}

}  // namespace atl::router
