// Who may queue, and who joins the images in flight at the next step. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace atl::router {

struct AdmissionOptions {
  // Images that are sampled together; also those whose results the caller has not taken yet. Bounds memory.
  int64_t max_images_in_flight = 2048;
  int64_t max_queued_images = 8192;
  int64_t max_queued_requests = 512;
  absl::Duration min_retry_delay = absl::Milliseconds(200);
  absl::Duration max_retry_delay = absl::Minutes(1);
};

struct AdmissionState {
  int64_t images_in_flight = 0;
  int64_t queued_images = 0;
  int64_t queued_requests = 0;
  // Solver steps that are left, over all images queued and in flight.
  int64_t image_steps_left = 0;
  // Measured; 0 before anything was.
  absl::Duration time_per_image_step = absl::ZeroDuration();
};

struct AdmissionDecision {
  bool admitted = false;
  int64_t position = 0;        // images ahead
  absl::Duration retry_delay;  // when not admitted: about when half of the work that is here will be done
  std::string reason;
};

AdmissionDecision Admit(int64_t images, const AdmissionState& state, const AdmissionOptions& options);

// How many of the queued requests, oldest first, join now. `queued` holds their image counts. Whole requests join, in
// order, while there is room; one that is larger than the room goes in alone once nothing else is in flight.
size_t CountJoining(std::span<const int64_t> queued, int64_t images_in_flight, const AdmissionOptions& options);

// RESOURCE_EXHAUSTED with reason QUEUE_FULL, naming and carrying the delay.
absl::Status RejectionStatus(const AdmissionDecision& decision);
// The delay that a status carries; zero for one without.
absl::Duration RetryDelayOf(const absl::Status& status);

}  // namespace atl::router
