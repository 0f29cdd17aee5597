// Decides which requests may queue, and which join the images in flight at the next step. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::router {

// Bounds of the delay before a rejected request may come back.
constexpr absl::Duration kMinRetryDelay = absl::Milliseconds(200);
constexpr absl::Duration kMaxRetryDelay = absl::Minutes(1);
// The priority of a queued request rises by one after each such interval.
constexpr absl::Duration kQueueAgeing = absl::Seconds(10);
// How long smaller requests may overtake a request that does not fit; then room is kept for it.
constexpr absl::Duration kLongestOvertaking = absl::Seconds(2);

struct AdmissionOptions {
  // Images that are sampled together, including those whose results the caller has not taken yet. Bounds memory.
  int64_t max_images_in_flight = 2048;
  int64_t max_queued_images = 8192;
  int64_t max_queued_requests = 512;
  // The total for the images that queued requests start from. Bounds memory: 1 GiB.
  int64_t max_queued_init_values = int64_t{256} << 20;
  // Images of small requests that may continue to overtake it, in a separate room beside max_images_in_flight: the
  // images in flight may take minutes more, and small requests take seconds.
  int64_t max_images_beside = 128;
};

struct AdmissionState {
  int64_t images_in_flight = 0;
  int64_t queued_images = 0;
  int64_t queued_requests = 0;
  int64_t queued_init_values = 0;
  // Solver steps left, over all images queued and in flight.
  int64_t image_steps_left = 0;
  // Measured; 0 before the first measurement.
  absl::Duration time_per_image_step = absl::ZeroDuration();
};

// Returns how many images are ahead of the request. `init_values`: of the images that it starts from.
// RESOURCE_EXHAUSTED (QUEUE_FULL) names and carries a delay (RetryDelayOf): about the time until half of the present
// work is done.
absl::StatusOr<int64_t> Admit(int64_t images, int64_t init_values, const AdmissionState& state,
                              const AdmissionOptions& options);

struct QueuedRequest {
  int64_t images = 0;
  int32_t priority = 0;  // higher goes first
  absl::Duration waited;
};

struct Joining {
  size_t queued = 0;    // its index
  bool beside = false;  // in the small requests' own room
  bool operator==(const Joining&) const = default;
};

// Returns the queued requests that join now, in the order of joining. `queued` is in the order of arrival, which
// decides among equal priorities. Whole requests join while there is room. A request that does not fit is overtaken by
// later ones that fit, but not for long: then only by requests that fit beside. A request larger than the whole room
// joins alone. `images_beside` are in flight in the separate room, and not counted in `images_in_flight`.
std::vector<Joining> ChooseJoining(std::span<const QueuedRequest> queued, int64_t images_in_flight,
                                   int64_t images_beside, const AdmissionOptions& options);

// Returns the same status, carrying a retry delay.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);
// Returns the delay that a status carries; zero for one without.
absl::Duration RetryDelayOf(const absl::Status& status);

}  // namespace atl::router
