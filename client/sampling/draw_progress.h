// Progress of sampling and the time left, as one line for a terminal. Pure: the caller passes the time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace atl::client {

// The sampling of `images` images by one or several requests in sequence. Not thread-safe.
class DrawProgress {
 public:
  explicit DrawProgress(int64_t images) : images_(images) {}

  // Call when the next request, of that many images, was sent. `position` images are ahead of it once the router
  // reports so.
  void OnRequest(int64_t images);
  // Call when the request failed and will be sent again: its images do not count.
  void OnRequestLost();
  void OnQueued(int64_t position);
  // The slowest image of the request has done `step` of `total_steps`.
  void OnStep(absl::Duration now, int32_t step, int32_t total_steps);
  void OnImage(absl::Duration now);

  // The finished share of all work, 0 to 1.
  double share() const;
  // Estimates from the pace since the first step; unset before the second report of progress.
  std::optional<absl::Duration> TimeLeft(absl::Duration now) const;
  // "12/40 images  step 13/30  0:12 left".
  std::string Figures(absl::Duration now) const;
  // "███░░░  12/40 images  step 13/30  0:12 left", at most `width` columns.
  std::string Line(absl::Duration now, int width, bool colour) const;

 private:
  void Begin(absl::Duration now);

  const int64_t images_;
  int64_t done_ = 0;            // images that are here
  int64_t request_images_ = 0;  // of the request under way
  int64_t request_done_ = 0;
  int32_t step_ = 0;
  int32_t total_steps_ = 0;
  int64_t position_ = 0;
  std::optional<absl::Duration> began_;
  double share_at_begin_ = 0;
};

}  // namespace atl::client
