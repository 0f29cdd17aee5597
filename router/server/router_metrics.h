// The router's metrics: atoll_router_*. Labels are bounded: served models, their experts, and a few fixed words.
// docs/metrics.md lists them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "inference/local/network_memory.h"
#include "router/engine/engine.h"

namespace atl::router {

// Thread-safe.
class RouterMetrics final : public EngineObserver {
 public:
  // `registry` must outlive the metrics.
  explicit RouterMetrics(metrics::Registry* registry);

  void OnBatch(const BatchStats& stats) override;
  void OnFailover(const FailoverStats& stats) override;
  void OnImageStep(const std::string& model, absl::Duration duration) override;
  void OnQueue(const QueueStats& stats) override;
  void OnRequestEnd(const RequestStats& stats) override;
  void OnRejected(const std::string& model, absl::StatusCode code) override;

  // `route` is one of the REST server's few fixed names.
  void OnRest(std::string_view route, int code, absl::Duration duration);
  void OnServing(const std::string& model, int64_t generation);
  void OnLoadFailed(const std::string& model);
  void OnWaitingForServers(const std::string& model, int64_t networks);
  void OnCoordinatorConnection(bool connected);

  // Refresh calls `stats`. Must be called before the first Refresh.
  void WatchMemory(std::function<NetworkMemoryStats()> stats) { memory_stats_ = std::move(stats); }
  // Updates the metrics that must be polled.
  void Refresh();

 private:
  metrics::Registry* const registry_;
  metrics::Gauge* const queued_requests_;
  metrics::Gauge* const queued_images_;
  metrics::Gauge* const images_in_flight_;
  metrics::Gauge* const coordinator_connected_;
  metrics::Histogram* const step_seconds_;
  metrics::Histogram* const queue_seconds_;
  metrics::Histogram* const sample_seconds_;
  metrics::Histogram* const first_image_seconds_;
  metrics::Gauge* const resident_bytes_;
  metrics::Gauge* const memory_budget_bytes_;
  metrics::Gauge* const resident_networks_;
  metrics::Gauge* const replicated_networks_;
  metrics::Counter* const network_loads_;
  metrics::Counter* const network_evictions_;
  std::function<NetworkMemoryStats()> memory_stats_;
  absl::Mutex mutex_;
  NetworkMemoryStats counted_ ABSL_GUARDED_BY(mutex_);  // already in the counters
};

}  // namespace atl::router
