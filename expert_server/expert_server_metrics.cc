#include "expert_server/expert_server_metrics.h"

#include <algorithm>
#include <string>

#include "common/base/network_id.h"
#include "common/wire/status.h"
#include "fmt/format.h"

namespace atl::worker {
namespace {

using State = placement::NetworkState;

constexpr char kNetworks[] = "atoll_expert_server_networks";
constexpr char kNetworksHelp[] = "Networks that this server is to host, by state.";

double Count(const Hosting& hosting, State state) {
  return static_cast<double>(
      std::count_if(hosting.networks.begin(), hosting.networks.end(),
                    [&](const placement::HostedNetwork& network) { return network.state == state; }));
}

}  // namespace

ExpertServerMetrics::ExpertServerMetrics(metrics::Registry* registry)
    : registry_(registry),
      loading_(registry->AddGauge(kNetworks, kNetworksHelp, {{"state", "loading"}})),
      ready_(registry->AddGauge(kNetworks, kNetworksHelp, {{"state", "ready"}})),
      failed_(registry->AddGauge(kNetworks, kNetworksHelp, {{"state", "failed"}})),
      loads_(registry->AddCounter("atoll_expert_server_network_loads_total", "Networks that were loaded.")),
      load_failures_(
          registry->AddCounter("atoll_expert_server_load_failures_total", "Loads of assigned networks that failed.")),
      evictions_(
          registry->AddCounter("atoll_expert_server_network_evictions_total", "Networks that gave way to others.")),
      resident_bytes_(registry->AddGauge("atoll_expert_server_resident_bytes", "Weights in memory.")),
      memory_budget_bytes_(
          registry->AddGauge("atoll_expert_server_memory_budget_bytes", "What weights may take; 0: no limit.")),
      waiting_batches_(registry->AddGauge("atoll_expert_server_waiting_batches", "Batches that wait for a lane.")),
      streams_(registry->AddGauge("atoll_expert_server_streams", "Routers' streams that are open.")),
      queue_seconds_(registry->AddHistogram("atoll_expert_server_queue_seconds",
                                            "Time from a batch's arrival to the start of its evaluation.",
                                            metrics::CallSecondsBounds())),
      coordinator_connected_(registry->AddGauge("atoll_expert_server_coordinator_connected",
                                                "1 when the coordinator answered the last heartbeat.")),
      coordinator_errors_(registry->AddCounter("atoll_expert_server_coordinator_errors_total",
                                               "Heartbeats that the coordinator did not answer, or refused.")) {}

void ExpertServerMetrics::OnBatch(const BatchEnd& batch) {
  registry_
      ->AddCounter("atoll_expert_server_batches_total", "Batches of routers, by outcome.",
                   {{"code", std::string(rpc::DefaultReason(batch.outcome))}})
      ->Increment();
  // Only what was hosted becomes a label: routers may ask for anything.
  if (batch.outcome != absl::StatusCode::kOk) return;
  const int32_t expert = batch.network.expert;
  const metrics::Labels network = {
      {"model", batch.network.model},
      {"expert", expert == kRouterNetwork ? std::string("router") : fmt::format("{}", expert)}};
  registry_
      ->AddHistogram("atoll_expert_server_batch_rows", "Rows of one network's batch.",
                     {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}, network)
      ->Observe(static_cast<double>(batch.rows));
  registry_
      ->AddHistogram("atoll_expert_server_compute_seconds", "Time that a lane spent on one network's batch.",
                     metrics::CallSecondsBounds(), network)
      ->Observe(absl::ToDoubleSeconds(batch.compute_time));
  queue_seconds_->Observe(absl::ToDoubleSeconds(batch.queue_time));
}

void ExpertServerMetrics::OnHeartbeat(const absl::Status& status) {
  coordinator_connected_->Set(status.ok() ? 1 : 0);
  if (!status.ok()) coordinator_errors_->Increment();
}

void ExpertServerMetrics::Refresh(const Hosting& hosting, const router::NetworkMemoryStats& memory,
                                  const ExpertService& service) {
  loading_->Set(Count(hosting, State::kLoading));
  ready_->Set(Count(hosting, State::kReady));
  failed_->Set(Count(hosting, State::kFailed));
  resident_bytes_->Set(static_cast<double>(memory.resident_bytes));
  memory_budget_bytes_->Set(static_cast<double>(memory.budget_bytes));
  waiting_batches_->Set(static_cast<double>(service.waiting()));
  streams_->Set(service.streams());
  absl::MutexLock lock(&mutex_);
  // Two scrapes at a time may come here in the wrong order.
  loads_->Increment(static_cast<double>(std::max<int64_t>(0, memory.loads - counted_.loads)));
  evictions_->Increment(static_cast<double>(std::max<int64_t>(0, memory.evictions - counted_.evictions)));
  counted_.loads = std::max(counted_.loads, memory.loads);
  counted_.evictions = std::max(counted_.evictions, memory.evictions);
}

}  // namespace atl::worker
