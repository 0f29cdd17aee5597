#include "coordinator/core/core_metrics.h"

#include <algorithm>
#include <string>

namespace atl::coordinator {
namespace {

template <typename State>
metrics::Labels StateLabel(const char* name, State state) {
  std::string value(jobs::ToString(state));
  std::transform(value.begin(), value.end(), value.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
  return {{name, value}};
}

}  // namespace

CoreMetrics::CoreMetrics(metrics::Registry* registry) {
  jobs_submitted = registry->AddCounter("atoll_coordinator_jobs_submitted_total", "Jobs accepted.");
  for (int state = 3; state <= 5; ++state) {
    jobs_ended[state] = registry->AddCounter("atoll_coordinator_jobs_ended_total", "Jobs that reached a final state.",
                                             StateLabel("state", static_cast<jobs::JobState>(state)));
  }
  for (int state = 1; state <= 2; ++state) {
    jobs[state] = registry->AddGauge("atoll_coordinator_jobs", "Unfinished jobs by state.",
                                     StateLabel("state", static_cast<jobs::JobState>(state)));
  }
  for (int state = 1; state <= 6; ++state) {
    tasks[state] = registry->AddGauge("atoll_coordinator_tasks", "Tasks of unfinished jobs by state.",
                                      StateLabel("state", static_cast<jobs::TaskState>(state)));
  }
  grants = registry->AddCounter("atoll_coordinator_grants_total", "Attempts granted.");
  for (int outcome = 2; outcome <= 9; ++outcome) {
    attempts_ended[outcome] =
        registry->AddCounter("atoll_coordinator_attempts_ended_total", "Attempts that ended, by outcome.",
                             StateLabel("outcome", static_cast<jobs::AttemptOutcome>(outcome)));
  }
  checkpoints_committed =
      registry->AddCounter("atoll_coordinator_checkpoints_committed_total", "Checkpoint rows written.");
  constexpr char kRollbacks[] = "atoll_coordinator_rollbacks_total";
  constexpr char kRollbacksHelp[] = "Training tasks that went back to an earlier checkpoint, by cause.";
  rollbacks_diverged = registry->AddCounter(kRollbacks, kRollbacksHelp, {{"cause", "diverged"}});
  rollbacks_damaged = registry->AddCounter(kRollbacks, kRollbacksHelp, {{"cause", "damaged"}});
  stale_attempts = registry->AddCounter("atoll_coordinator_stale_attempts_total", "Calls refused with STALE_ATTEMPT.");
  models_published = registry->AddCounter("atoll_coordinator_models_published_total", "Model versions published.");
  islands_live = registry->AddGauge("atoll_coordinator_islands_live", "Islands heard of within one lease duration.");
  islands_slow = registry->AddGauge("atoll_coordinator_islands_slow",
                                    "Islands whose steps take more than twice as long as others' for over a minute.");
  islands_drained = registry->AddGauge("atoll_coordinator_islands_drained", "Islands that an operator drained.");
  leases_live = registry->AddGauge("atoll_coordinator_leases_live", "Leases that have not run out.");
  leases_expired = registry->AddGauge("atoll_coordinator_leases_expired", "Leases that ran out and are claimable.");
  waiting_claims = registry->AddGauge("atoll_coordinator_waiting_claims", "Claims that wait for a task that fits.");
  watches = registry->AddGauge("atoll_coordinator_watches", "Open watches of jobs and models.");
  store_epoch = registry->AddGauge("atoll_coordinator_store_epoch", "First half of every fencing token.");
  store_write_seconds = registry->AddHistogram("atoll_coordinator_store_write_seconds",
                                               "Time of one durable transaction.", metrics::CallSecondsBounds());
  store_write_failures = registry->AddCounter("atoll_coordinator_store_write_failures_total",
                                              "Transactions that the store could not write.");
  collected_files = registry->AddCounter("atoll_coordinator_collected_files_total", "Files deleted by collection.");
  collection_failures =
      registry->AddCounter("atoll_coordinator_collection_failures_total", "Collections that ended with an error.");
  last_collection_time =
      registry->AddGauge("atoll_coordinator_last_collection_timestamp_seconds", "When collection last finished.");
  collection_held = registry->AddGauge("atoll_coordinator_collection_held",
                                       "1 while nothing is deleted, from a restore until --adopt.");
  active = registry->AddGauge("atoll_coordinator_active", "1 once it serves, 0 while it waits for the store.");
}

}  // namespace atl::coordinator
