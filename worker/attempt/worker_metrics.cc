#include "worker/attempt/worker_metrics.h"

namespace atl::worker {

WorkerMetrics::WorkerMetrics(metrics::Registry* registry)
    : steps(registry->AddCounter("atoll_worker_steps_total", "Optimizer steps done by this rank.")),
      loss(registry->AddGauge("atoll_worker_training_loss",
                              "Loss of the last step; only the rank of the last stage sets it.")),
      step_seconds(registry->AddHistogram("atoll_worker_step_seconds", "Time of one optimizer step.",
                                          metrics::WorkSecondsBounds())),
      wait_ratio(
          registry->AddGauge("atoll_worker_wait_ratio",
                             "Share of the last step in which the compute thread waited for its inputs: the bubble.")),
      checkpoint_seconds(registry->AddHistogram("atoll_worker_checkpoint_write_seconds",
                                                "Time to write this rank's part of a checkpoint.",
                                                metrics::WorkSecondsBounds())),
      checkpoint_failures(registry->AddCounter("atoll_worker_checkpoint_write_failures_total",
                                               "Checkpoints whose part of this rank could not be written.")),
      attempts(registry->AddCounter("atoll_worker_attempts_total", "Training attempts started on this rank.")),
      attempt_failures(registry->AddCounter("atoll_worker_attempt_failures_total",
                                            "Training attempts that ended with an error on this rank.")),
      divergences(registry->AddCounter(
          "atoll_worker_divergences_total",
          "Training attempts that ended because losses or gradients went wrong; each rank counts the same one.")),
      lost_ranks(registry->AddCounter("atoll_worker_lost_ranks_total", "Ranks that the leader lost, on the leader.")),
      lost_leader(registry->AddCounter("atoll_worker_lost_leader_total", "Times that this rank lost its leader.")),
      present_ranks(registry->AddGauge("atoll_worker_present_ranks", "Ranks that have joined, on the leader.")),
      uncommitted_checkpoints(registry->AddGauge("atoll_worker_uncommitted_checkpoints",
                                                 "Checkpoints written and not committed yet, on the leader.")),
      coordinator_errors(registry->AddCounter("atoll_worker_coordinator_errors_total",
                                              "Calls to the coordinator that failed, on the leader.")),
      stopping(registry->AddGauge(
          "atoll_worker_stopping",
          "1 once a signal or a notice asked the process to end: it leaves a checkpoint if there is time.")) {}

}  // namespace atl::worker
