// Requests and images that are being sampled. Plain state: only the sampling thread uses it.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/engine/image_step.h"
#include "router/engine/served_version.h"
#include "router/policy/numerics.h"
#include "router/policy/request.h"
#include "router/policy/time_grid.h"

namespace atl::router {

// Statistics of the experts that sampled the images of one request.
struct RoutingReport {
  std::vector<int64_t> chosen;  // by expert: image-steps in which it was chosen
  std::vector<double> weight;   // by expert: sum of its weights over image-steps
  int64_t image_steps = 0;
  int64_t switches = 0;                  // image-steps with other experts than the step before
  int64_t close_calls = 0;               // image-steps in which rounding might have chosen other experts
  int64_t routed_image_steps = 0;        // those for which the router network was asked: all but oracle's
  double entropy_sum = 0;                // of its posteriors, in nats
  int64_t renormalised_image_steps = 0;  // that went on without an expert
  std::set<int32_t> lost_experts;
  int64_t failovers = 0;  // evaluations that were answered after another lane had failed

  double mean_entropy() const {
    return routed_image_steps == 0 ? 0 : entropy_sum / static_cast<double>(routed_image_steps);
  }
  // `before`: the experts of the image's previous step, ascending; set to those of `choice`. Empty: it is the first
  // step.
  void Count(const ExpertChoice& choice, std::vector<int32_t>* before);
};

struct ActiveImage {
  int64_t id = 0;     // in the engine
  int32_t index = 0;  // within the request
  ImageOrder order;
  SampleState state;
  std::optional<ImageStep> step;  // the one under way
  absl::Duration step_began;
  int32_t steps_done = 0;
  std::vector<int32_t> experts;  // that were chosen for the step last begun, ascending
  // Networks that were requested for a point of the current step.
  struct Asked {
    int64_t point = 0;
    int32_t network = kRouterNetwork;
    bool operator==(const Asked&) const = default;
  };
  std::vector<Asked> asked;
  bool renormalised = false;  // the current step continues without an expert
  bool delivering = false;    // all steps are done, and its picture is being made
  bool previewing = false;    // its preview is being made
};

struct SampledImage {
  int32_t index = 0;
  ImageOrder order;
  std::string data;  // PNG, or float32 little endian
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
};

struct SampleReport {
  RoutingReport routing;
  absl::Duration queue_time;
  absl::Duration sample_time;
  std::string version;
  absl::Duration first_image_time;  // from the request's arrival
  std::string fingerprint;          // of a reproducible request: of the arithmetic that drew its images
};

// The events of one request. The order is OnQueued, then OnProgress, OnPreviews and OnImage in any mixture, then OnDone
// or OnError, which is the last but for OnNotTaken. The submitting thread calls OnQueued, the sampling thread the rest,
// never under a lock of the engine. Must not block and must not call the engine.
class SampleEvents {
 public:
  virtual ~SampleEvents() = default;
  virtual void OnQueued(int64_t position, const std::string& version) = 0;
  // The slowest image has done `step` of `total_steps`.
  virtual void OnProgress(int32_t step, int32_t total_steps) = 0;
  // Intermediate results of images in flight: the clean samples to which they point. Only for requests with previews.
  virtual void OnPreviews(std::vector<SampledImage> /*previews*/) {}
  virtual void OnImage(SampledImage image) = 0;
  virtual void OnDone(const SampleReport& report) = 0;
  virtual void OnError(const absl::Status& status) = 0;
  // The caller has not taken the results long after OnDone or OnError: they must be dropped, and the ticket with them.
  virtual void OnNotTaken() {}
};

struct ActiveRequest {
  int64_t id = 0;
  SampleOrder order;
  std::vector<SolverStep> grid;
  std::shared_ptr<const ServedVersion> model;
  int64_t model_key = 0;  // equal for requests of one version; set when it joins
  std::shared_ptr<SampleEvents> events;
  absl::Duration deadline = absl::InfiniteDuration();
  absl::Duration submitted;
  std::optional<absl::Duration> started;  // when it left the queue
  std::list<ActiveImage> images;          // that are not finished; they stay in place, for steps point at them
  int32_t reported_step = 0;
  int32_t previewed_step = 0;                 // the one reported when previews were made last
  std::optional<absl::Duration> first_image;  // when it was delivered
  int64_t steps_taken = 0;                    // by its images, since the engine counted last
  RoutingReport routing;
  absl::Status failure;      // set by a step that could not be done
  RequestNumerics numerics;  // of a reproducible request
};

// Fills each image with the starting noise, which depends only on its seed, and blends in the init image.
void StartImages(ActiveRequest* request);

// Encodes the image as PNG (clamped to [-1, 1], rounded to 8 bits) or raw. INTERNAL (NON_FINITE_OUTPUT) when a pixel is
// not finite.
absl::StatusOr<SampledImage> FinishImage(const ActiveImage& image, const SamplerInfo& info, ImageFormat format);

// Returns the images in flight whose previews are due: the request wants previews at its reported step and has had none
// for it. Skips images whose last preview is still being made.
std::vector<ActiveImage*> TakeDuePreviews(ActiveRequest* request);

}  // namespace atl::router
