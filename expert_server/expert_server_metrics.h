// The metrics of an expert server: atoll_expert_server_*. Labels are bounded: assigned models, their experts, gRPC's
// codes and a few fixed words. docs/metrics.md lists them.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "expert_server/expert_service.h"
#include "expert_server/lane_queue.h"
#include "inference/local/network_memory.h"

namespace atl::worker {

// Thread-safe.
class ExpertServerMetrics {
 public:
  // `registry` must outlive it.
  explicit ExpertServerMetrics(metrics::Registry* registry);

  void OnBatch(const BatchEnd& batch);
  void OnLoadFailed() { load_failures_->Increment(); }
  // Counts one call to the coordinator by its outcome.
  void OnHeartbeat(const absl::Status& status);
  // Sets the gauges, and adds to the counters of loads and evictions, from these snapshots.
  void Refresh(const Hosting& hosting, const router::NetworkMemoryStats& memory, const ExpertService& service);

 private:
  metrics::Registry* const registry_;
  metrics::Gauge* const loading_;
  metrics::Gauge* const ready_;
  metrics::Gauge* const failed_;
  metrics::Counter* const loads_;
  metrics::Counter* const load_failures_;
  metrics::Counter* const evictions_;
  metrics::Gauge* const resident_bytes_;
  metrics::Gauge* const memory_budget_bytes_;
  metrics::Gauge* const waiting_batches_;
  metrics::Gauge* const streams_;
  metrics::Histogram* const queue_seconds_;
  metrics::Gauge* const coordinator_connected_;
  metrics::Counter* const coordinator_errors_;
  absl::Mutex mutex_;
  router::NetworkMemoryStats counted_ ABSL_GUARDED_BY(mutex_);  // the values that the counters include already
};

}  // namespace atl::worker
