// The engine's way from a finished image to its caller, and what callers are told before.
#include <algorithm>

#include "router/engine/engine.h"

namespace atl::router {

void Engine::DeliverProgress() {
  for (const auto& request : active_) {
    if (!request->failure.ok()) continue;
    int32_t least = static_cast<int32_t>(request->grid.size());
    for (const ActiveImage& image : request->images) least = std::min(least, image.steps_done);
    if (least == request->reported_step) continue;
    request->reported_step = least;
    request->events->OnProgress(least, static_cast<int32_t>(request->grid.size()));
    StartPreviews(request.get());
  }
}

void Engine::StartPreviews(ActiveRequest* request) {
  std::vector<SampledImage> made;
  for (ActiveImage* image : TakeDuePreviews(request)) {
    Encoder::Job job{.image = {.id = image->id, .index = image->index, .order = image->order},
                     .format = request->order.format,
                     .model = request->model,
                     .preview = true};
    job.image.state.x = image->state.preview;
    if (encoder_ != nullptr) {
      image->previewing = true;
      encoder_->Start(std::move(job));
      continue;
    }
    absl::StatusOr<SampledImage> preview = FinishImage(job.image, job.model->info, job.format);
    if (preview.ok()) made.push_back(*std::move(preview));
  }
  if (!made.empty()) request->events->OnPreviews(std::move(made));
}

void Engine::TakePreview(const Flight& flight, absl::StatusOr<SampledImage> preview) {
  flight.image->previewing = false;
  // Skips a preview that is not finite: the end of the image reports the error.
  if (!preview.ok() || !flight.request->failure.ok()) return;
  std::vector<SampledImage> previews;
  previews.push_back(*std::move(preview));
  flight.request->events->OnPreviews(std::move(previews));
}

void Engine::StartDelivery(ActiveRequest* request) {
  std::vector<int64_t> finished;
  for (const ActiveImage& image : request->images) {
    if (image.delivering && !image.state.x.empty()) finished.push_back(image.id);
  }
  for (const int64_t id : finished) {
    ActiveImage& image = *flights_.at(id).image;
    Encoder::Job job{.image = {.id = id, .index = image.index, .order = image.order, .state = std::move(image.state)},
                     .format = request->order.format,
                     .model = request->model};
    image.state = {};
    if (encoder_ != nullptr) {
      encoder_->Start(std::move(job));
    } else {
      DeliverImage(request, id, FinishImage(job.image, job.model->info, job.format));
    }
    if (!request->failure.ok()) return;
  }
}

void Engine::DeliverImage(ActiveRequest* request, int64_t image, absl::StatusOr<SampledImage> sampled) {
  if (!request->failure.ok()) return;
  if (!sampled.ok()) {
    request->failure = sampled.status();
    return;
  }
  if (!request->first_image) request->first_image = clock_->Monotonic();
  request->events->OnImage(*std::move(sampled));
  flights_.erase(image);
  std::erase_if(request->images, [&](const ActiveImage& entry) { return entry.id == image; });
}

}  // namespace atl::router
