// The coordinator's metrics, made once so that every series exists from the start.
#pragma once

#include <array>

#include "common/metrics/metrics.h"
#include "coordinator/jobs/job.h"

namespace atl::coordinator {

struct CoreMetrics {
  // `registry` must outlive the metrics.
  explicit CoreMetrics(metrics::Registry* registry);

  metrics::Counter* AttemptsEnded(jobs::AttemptOutcome outcome) { return attempts_ended[static_cast<size_t>(outcome)]; }
  metrics::Gauge* Jobs(jobs::JobState state) { return jobs[static_cast<size_t>(state)]; }
  metrics::Gauge* Tasks(jobs::TaskState state) { return tasks[static_cast<size_t>(state)]; }

  metrics::Counter* jobs_submitted;
  metrics::Counter* jobs_ended[6] = {};
  metrics::Counter* grants;
  metrics::Counter* attempts_ended[10] = {};
  metrics::Counter* checkpoints_committed;
  metrics::Counter* rollbacks_diverged;
  metrics::Counter* rollbacks_damaged;
  metrics::Counter* stale_attempts;
  metrics::Counter* models_published;
  metrics::Gauge* jobs[6] = {};
  metrics::Gauge* tasks[7] = {};
  metrics::Gauge* islands_live;
  metrics::Gauge* islands_slow;
  metrics::Gauge* islands_drained;
  metrics::Gauge* leases_live;
  metrics::Gauge* leases_expired;
  metrics::Gauge* waiting_claims;
  metrics::Gauge* watches;
  metrics::Gauge* store_epoch;
  metrics::Histogram* store_write_seconds;
  metrics::Counter* store_write_failures;
  metrics::Counter* collected_files;
  metrics::Counter* collection_failures;
  metrics::Gauge* last_collection_time;
  metrics::Gauge* collection_held;
  metrics::Gauge* active;
};

}  // namespace atl::coordinator
