// The metrics of a worker process (docs/operations.md explains each). Pointers live as long as the registry.
#pragma once

#include "common/metrics/metrics.h"

namespace atl::worker {

struct WorkerMetrics {
  explicit WorkerMetrics(metrics::Registry* registry);

  metrics::Counter* steps;
  metrics::Gauge* loss;
  metrics::Histogram* step_seconds;
  metrics::Gauge* wait_ratio;  // share of the last step that actions waited for inputs
  metrics::Histogram* checkpoint_seconds;
  metrics::Counter* checkpoint_failures;
  metrics::Counter* attempts;
  metrics::Counter* attempt_failures;
  metrics::Counter* divergences;
  metrics::Counter* lost_ranks;   // the leader's
  metrics::Counter* lost_leader;  // the other ranks'
  metrics::Gauge* present_ranks;
  metrics::Gauge* uncommitted_checkpoints;
  metrics::Counter* coordinator_errors;
  metrics::Gauge* stopping;  // 1 from the first signal or notice on
};

}  // namespace atl::worker
