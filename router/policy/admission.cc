#include "router/policy/admission.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/cord.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

constexpr char kRetryDelayUrl[] = "atoll/retry_delay";

absl::Status QueueFull(const AdmissionState& state, const std::string& why) {
  const absl::Duration backlog = state.time_per_image_step * static_cast<double>(state.image_steps_left);
  const absl::Duration delay =
      absl::Ceil(std::clamp(backlog / 2, kMinRetryDelay, kMaxRetryDelay), absl::Milliseconds(1));
  return WithRetryDelay(
      MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                fmt::format("the queue is full: {}; try again in {}", why, absl::FormatDuration(delay))),
      delay);
}

}  // namespace

absl::StatusOr<int64_t> Admit(int64_t images, int64_t init_values, const AdmissionState& state,
                              const AdmissionOptions& options) {
  if (state.queued_requests >= options.max_queued_requests) {
    return QueueFull(state, fmt::format("{} requests wait already, expected fewer than {}", state.queued_requests,
                                        options.max_queued_requests));
  }
  if (state.queued_images > 0 && state.queued_images + images > options.max_queued_images) {
    return QueueFull(state, fmt::format("{} images wait already and the request has {}, expected at most {} in all",
                                        state.queued_images, images, options.max_queued_images));
  }
  if (state.queued_init_values > 0 && state.queued_init_values + init_values > options.max_queued_init_values) {
    return QueueFull(state, fmt::format("images to start from of {} values wait already and the request has {}, "
                                        "expected at most {} in all",
                                        state.queued_init_values, init_values, options.max_queued_init_values));
  }
  return state.images_in_flight + state.queued_images;
}

std::vector<Joining> ChooseJoining(std::span<const QueuedRequest> queued, int64_t images_in_flight,
                                   int64_t images_beside, const AdmissionOptions& options) {
  const auto priority_of = [&](size_t i) {
    return queued[i].priority + static_cast<int64_t>(absl::FDivDuration(queued[i].waited, kQueueAgeing));
  };
  std::vector<size_t> order(queued.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return priority_of(a) > priority_of(b); });
  std::vector<Joining> joining;
  bool kept = false;  // the room, for one that has waited
  for (const size_t i : order) {
    const int64_t images = queued[i].images;
    const bool waited_long = queued[i].waited >= kLongestOvertaking;
    if (!kept && (images_in_flight == 0 || images_in_flight + images <= options.max_images_in_flight)) {
      images_in_flight += images;
      joining.push_back({.queued = i});
    } else if ((kept || waited_long) && images_beside + images <= options.max_images_beside) {
      images_beside += images;
      joining.push_back({.queued = i, .beside = true});
    } else {
      kept |= waited_long;
    }
  }
  return joining;
}

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
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
