#include "router/server/router_metrics.h"

#include <algorithm>
#include <string_view>

#include "common/base/network_id.h"
#include "common/wire/status.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

std::vector<double> PowersOfTwo(int count) {
  std::vector<double> bounds;
  for (int i = 0; i < count; ++i) bounds.push_back(static_cast<double>(int64_t{1} << i));
  return bounds;
}

// To ln 32: posteriors of more experts are sharper than even.
std::vector<double> EntropyBounds() {
  return {0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.1, 2.8, 3.5};
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
      step_seconds_(registry->AddHistogram("atoll_router_step_seconds",
                                           "Time of one image's solver step, with its waits for others.",
                                           metrics::CallSecondsBounds())),
      queue_seconds_(registry->AddHistogram("atoll_router_queue_seconds",
                                            "Time from a request's arrival to its first step.",
                                            metrics::CallSecondsBounds())),
      sample_seconds_(registry->AddHistogram("atoll_router_sample_seconds",
                                             "Time from a finished request's first step to its last image.",
                                             metrics::WorkSecondsBounds())),
      first_image_seconds_(registry->AddHistogram("atoll_router_first_image_seconds",
                                                  "Time from a finished request's arrival to its first image.",
                                                  metrics::WorkSecondsBounds())),
      resident_bytes_(registry->AddGauge("atoll_router_resident_bytes", "Weights in this process's memory.")),
      memory_budget_bytes_(registry->AddGauge("atoll_router_memory_budget_bytes",
                                              "What weights may take of this process's memory; 0: no limit.")),
      resident_networks_(registry->AddGauge("atoll_router_resident_networks",
                                            "Networks in this process's memory, of those that it hosts.")),
      replicated_networks_(registry->AddGauge("atoll_router_replicated_networks",
                                              "Networks that lie on several of this process's devices.")),
      network_loads_(registry->AddCounter("atoll_router_network_loads_total", "Networks that were loaded.")),
      network_evictions_(
          registry->AddCounter("atoll_router_network_evictions_total", "Networks that gave way to others.")) {}

void RouterMetrics::OnBatch(const BatchStats& stats) {
  const std::string place = stats.remote ? "remote" : "local";
  registry_
      ->AddCounter("atoll_router_batches_total", "Batches that lanes evaluated, here or on expert servers, by outcome.",
                   {{"place", place}, {"code", std::string(rpc::DefaultReason(stats.outcome))}})
      ->Increment();
  const metrics::Labels network = {
      {"model", stats.model},
      {"expert", stats.network == kRouterNetwork ? std::string("router") : fmt::format("{}", stats.network)}};
  registry_->AddHistogram("atoll_router_batch_rows", "Rows of one network's batch.", PowersOfTwo(11), network)
      ->Observe(static_cast<double>(stats.rows));
  registry_
      ->AddHistogram("atoll_router_batch_wait_seconds",
                     "Longest time that a row of a batch was ready before the batch started.",
                     metrics::CallSecondsBounds(), network)
      ->Observe(absl::ToDoubleSeconds(stats.wait));
  if (stats.outcome != absl::StatusCode::kOk) return;
  registry_
      ->AddHistogram("atoll_router_batch_seconds", "Time from a batch's start to its answer.",
                     metrics::CallSecondsBounds(), {{"place", place}})
      ->Observe(absl::ToDoubleSeconds(stats.lane_time));
}

void RouterMetrics::OnFailover(const FailoverStats& stats) {
  registry_
      ->AddCounter("atoll_router_failovers_total",
                   "Batches whose rows were sent again (retry), and evaluations that were given up (lost).",
                   {{"model", stats.model}, {"action", stats.lost ? "lost" : "retry"}})
      ->Increment();
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
  if (stats.outcome != absl::StatusCode::kOk) return;
  sample_seconds_->Observe(absl::ToDoubleSeconds(stats.sample_time));
  first_image_seconds_->Observe(absl::ToDoubleSeconds(stats.first_image_time));
  if (stats.routing.routed_image_steps == 0) return;
  registry_
      ->AddHistogram("atoll_router_routing_entropy_nats",
                     "Mean entropy of the router network's posteriors over a request.", EntropyBounds(),
                     {{"model", stats.model}})
      ->Observe(stats.routing.mean_entropy());
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

void RouterMetrics::OnWaitingForServers(const std::string& model, int64_t networks) {
  registry_
      ->AddGauge("atoll_router_awaited_networks",
                 "Networks that the version to be served waits for on expert servers; 0: it does not wait.",
                 {{"model", model}})
      ->Set(static_cast<double>(networks));
}

void RouterMetrics::OnCoordinatorConnection(bool connected) {
  coordinator_connected_->Set(connected ? 1 : 0);
}

void RouterMetrics::Refresh() {
  if (!memory_stats_) return;
  const NetworkMemoryStats stats = memory_stats_();
  resident_bytes_->Set(static_cast<double>(stats.resident_bytes));
  memory_budget_bytes_->Set(static_cast<double>(stats.budget_bytes));
  resident_networks_->Set(static_cast<double>(stats.resident));
  replicated_networks_->Set(static_cast<double>(stats.replicated));
  absl::MutexLock lock(&mutex_);
  // Two scrapes at a time may come here in the wrong order.
  network_loads_->Increment(static_cast<double>(std::max<int64_t>(0, stats.loads - counted_.loads)));
  network_evictions_->Increment(static_cast<double>(std::max<int64_t>(0, stats.evictions - counted_.evictions)));
  counted_.loads = std::max(counted_.loads, stats.loads);
  counted_.evictions = std::max(counted_.evictions, stats.evictions);
}

}  // namespace atl::router
