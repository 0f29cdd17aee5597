#include "router/service/router_metrics.h"

#include "common/rpc/status.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

std::vector<double> PowersOfTwo(int count) {
  std::vector<double> bounds;
  for (int i = 0; i < count; ++i) bounds.push_back(static_cast<double>(int64_t{1} << i));
  return bounds;
}

}  // namespace

RouterMetrics::RouterMetrics(metrics::Registry* registry)
    : registry_(registry),
      queued_requests_(registry->AddGauge("atoll_router_queued_requests", "Requests that wait to be sampled.")),
      queued_images_(registry->AddGauge("atoll_router_queued_images", "Images of the requests that wait.")),
      images_in_flight_(registry->AddGauge("atoll_router_images_in_flight",
                                           "Images being sampled, or finished and not delivered yet.")),
      coordinator_connected_(registry->AddGauge("atoll_router_coordinator_connected",
                                                "1 while the watch of the coordinator's models is up.")),
      step_seconds_(registry->AddHistogram("atoll_router_step_seconds", "Duration of one step of one image.",
                                           metrics::CallSecondsBounds())),
      batch_rows_(registry->AddHistogram("atoll_router_batch_rows", "Rows of one network's batch.", PowersOfTwo(11))),
      queue_seconds_(registry->AddHistogram("atoll_router_queue_seconds",
                                            "Time from a request's arrival to its first step.",
                                            metrics::CallSecondsBounds())),
      sample_seconds_(registry->AddHistogram("atoll_router_sample_seconds",
                                             "Time from a finished request's first step to its last image.",
                                             metrics::WorkSecondsBounds())) {}

void RouterMetrics::OnBatch(const BatchStats& stats) {
  batch_rows_->Observe(static_cast<double>(stats.rows));
}

void RouterMetrics::OnImageStep(const std::string& /*model*/, absl::Duration duration) {
  step_seconds_->Observe(absl::ToDoubleSeconds(duration));
}

void RouterMetrics::OnQueue(const QueueStats& stats) {
  queued_requests_->Set(static_cast<double>(stats.queued_requests));
  queued_images_->Set(static_cast<double>(stats.queued_images));
  images_in_flight_->Set(static_cast<double>(stats.images_in_flight));
}

void RouterMetrics::OnRequestEnd(const RequestStats& stats) {
  registry_
      ->AddCounter("atoll_router_requests_total", "Requests that ended, by outcome.",
                   {{"model", stats.model}, {"code", std::string(rpc::DefaultReason(stats.outcome))}})
      ->Increment();
  registry_->AddCounter("atoll_router_images_total", "Images that were finished.", {{"model", stats.model}})
      ->Increment(static_cast<double>(stats.images));
  for (size_t expert = 0; expert < stats.routing.chosen.size(); ++expert) {
    registry_
        ->AddCounter("atoll_router_expert_image_steps_total", "Image-steps in which an expert was chosen.",
                     {{"model", stats.model}, {"expert", fmt::format("{}", expert)}})
        ->Increment(static_cast<double>(stats.routing.chosen[expert]));
  }
  queue_seconds_->Observe(absl::ToDoubleSeconds(stats.queue_time));
  if (stats.outcome == absl::StatusCode::kOk) sample_seconds_->Observe(absl::ToDoubleSeconds(stats.sample_time));
}

void RouterMetrics::OnRejected(const std::string& model, absl::StatusCode code) {
  registry_
      ->AddCounter("atoll_router_rejected_requests_total", "Requests that were refused, by reason.",
                   {{"model", model}, {"code", std::string(rpc::DefaultReason(code))}})
      ->Increment();
}

void RouterMetrics::OnRest(std::string_view route, int code, absl::Duration duration) {
  registry_
      ->AddCounter("atoll_router_rest_requests_total", "REST requests that were answered, by route and status code.",
                   {{"route", std::string(route)}, {"code", fmt::format("{}", code)}})
      ->Increment();
  registry_
      ->AddHistogram("atoll_router_rest_seconds", "Time from a REST request's head to its answer's last byte.",
                     metrics::CallSecondsBounds(), {{"route", std::string(route)}})
      ->Observe(absl::ToDoubleSeconds(duration));
}

void RouterMetrics::OnServing(const std::string& model, int64_t generation) {
  registry_
      ->AddGauge("atoll_router_serving_generation", "Generation of the serving row that is served.", {{"model", model}})
      ->Set(static_cast<double>(generation));
}

void RouterMetrics::OnLoadFailed(const std::string& model) {
  registry_->AddCounter("atoll_router_load_failures_total", "Versions that could not be loaded.", {{"model", model}})
      ->Increment();
}

void RouterMetrics::OnCoordinatorConnection(bool connected) {
  coordinator_connected_->Set(connected ? 1 : 0);
}

}  // namespace atl::router
