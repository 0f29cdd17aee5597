// The router's metrics: atoll_router_*. Labels are bounded: models that are served and their experts.
#pragma once

#include <memory>
#include <string>

#include "common/metrics/metrics.h"
#include "router/engine/engine.h"

namespace atl::router {

// Thread-safe.
class RouterMetrics final : public EngineObserver {
 public:
  // `registry` must outlive it.
  explicit RouterMetrics(metrics::Registry* registry);

  void OnBatch(const BatchStats& stats) override;
  void OnImageStep(const std::string& model, absl::Duration duration) override;
  void OnQueue(const QueueStats& stats) override;
  void OnRequestEnd(const RequestStats& stats) override;
  void OnRejected(const std::string& model, absl::StatusCode code) override;

  // `route` is one of the few that the REST server has.
  void OnRest(std::string_view route, int code, absl::Duration duration);
  void OnServing(const std::string& model, int64_t generation);
  void OnLoadFailed(const std::string& model);
  void OnCoordinatorConnection(bool connected);

 private:
  metrics::Registry* const registry_;
  metrics::Gauge* const queued_requests_;
  metrics::Gauge* const queued_images_;
  metrics::Gauge* const images_in_flight_;
  metrics::Gauge* const coordinator_connected_;
  metrics::Histogram* const step_seconds_;
  metrics::Histogram* const batch_rows_;
  metrics::Histogram* const queue_seconds_;
  metrics::Histogram* const sample_seconds_;
};

}  // namespace atl::router
