// One rank's part of one training attempt: transport, trainer, steps, checkpoints. The leader's rank runs the same
// code.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/planner/plan.h"
#include "common/spec/task.h"
#include "common/storage/blob_store.h"
#include "worker/attempt/checkpoint_writer.h"
#include "worker/attempt/divergence.h"
#include "worker/attempt/stop_plan.h"
#include "worker/attempt/training_inputs.h"
#include "worker/attempt/worker_metrics.h"
#include "worker/engine/activity.h"
#include "worker/trainer/frozen_cache.h"
#include "worker/trainer/profiler.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/transport.h"

namespace atl::worker {

// The leader's description of an attempt for one rank.
struct AttemptStart {
  int64_t incarnation = 0;
  spec::TaskGrant grant;
  planner::Plan plan;
  int32_t plan_rank = 0;
  std::string device;  // "cuda:1"; empty: the processor
  std::string checkpoint_nonce;
  std::string epoch_uri;  // of the coordinator's blob store; empty: not given
  // Not empty: the attempt measures these instead of training (a profile).
  std::vector<int32_t> profile_sizes;
  std::string profile_key;
  bool profile_calibration = false;
};

// The parts that an attempt is built from; tests supply their own.
struct AttemptParts {
  storage::BlobStore* store = nullptr;
  Clock* clock = nullptr;
  WorkerMetrics* metrics = nullptr;
  int32_t threads = 1;
  // Makes the transport for tensors on `device`.
  std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(const std::string& device, int32_t rank,
                                                                      int32_t ranks, const transport::AttemptIdentity&)>
      make_transport;
  std::function<absl::StatusOr<std::unique_ptr<trainer::TrainingData>>(const TrainingInputs&)> open_data;
  std::function<absl::StatusOr<std::unique_ptr<trainer::Trainer>>(const trainer::TrainerOptions&, const planner::Plan&,
                                                                  int32_t rank, trainer::TrainingData*,
                                                                  transport::Transport*)>
      make_trainer;
  std::function<absl::StatusOr<planner::Profile>(const trainer::ProfilerOptions&, transport::Transport*)> profile_rank;
  std::function<absl::StatusOr<std::shared_ptr<const trainer::FrozenOutputs>>(trainer::TrainingData*,
                                                                              const trainer::FrozenCacheOptions&)>
      obtain_frozen_cache;
  // Thresholds after which work counts as hanging.
  engine::ActivityOptions activity;
  // The longest wait for all peers to connect.
  absl::Duration connect_timeout = absl::Seconds(30);
  // Number of latest steps whose traces are kept, in addition to the attempt's first one. 0: writes none.
  int32_t kept_traces = 8;
  // Least time between two step reports; the last step is always reported.
  absl::Duration report_interval = absl::Milliseconds(200);
};

// The reports of one rank about an attempt. Called on the compute or the writer thread; must not block.
struct AttemptReports {
  std::function<void(const std::string& address)> ready;
  std::function<void(const WrittenStages&)> written;
  std::function<void(const trainer::StepResult&)> step_done;
  std::function<void(const Divergence&)> diverged;
  std::function<void(const planner::Profile&)> profiled;
};

// The progress of an attempt; zeros before the first step.
struct AttemptProgress {
  int64_t step = 0;                // the last one done
  absl::Duration step_time;        // of that step
  absl::Duration checkpoint_time;  // the longest that this rank's part of a checkpoint took to write lately
  int64_t stop_after = 0;          // the step given to StopAfter
};

// Run is called once, on the compute thread. Connect, StopAfter and Abort are called from any thread and never block.
class TrainingAttempt {
 public:
  TrainingAttempt(AttemptStart start, const AttemptParts& parts, AttemptReports reports);

  // Measures and reports a profile, or trains. Training ends when the last step, or the step of StopAfter, is done and
  // its checkpoint is written, or with the first error. After an error, checkpoints in progress are still finished and
  // reported. If this rank's blob store is not the coordinator's, returns FAILED_PRECONDITION (BLOB_STORE_OTHER) before
  // reading any data.
  absl::Status Run();

  // Sets every rank's transport address, by plan rank. Only the first call counts.
  void Connect(std::vector<std::string> addresses);
  // Ends training without an error after `step`, with a checkpoint of it. ABORTED, reason STOP_TOO_LATE, if the rank is
  // past it.
  void StopAfter(int64_t step);
  void Abort(const absl::Status& reason);

  const AttemptStart& start() const { return start_; }
  // The device that the rank computes on, as LibTorch names it.
  std::string device() const { return start_.device.empty() ? "cpu" : start_.device; }
  // Callable from any thread.
  AttemptProgress progress() const;
  // Returns the compute thread's overdue work, if any. Callable from any thread.
  std::optional<engine::Overdue> FindOverdue() const { return activity_.FindOverdue(); }

 private:
  absl::Status Train();
  absl::Status Measure();
  absl::Status Prepare();
  absl::StatusOr<TrainingInputs> ReadInputs() const;
  // Returns the outputs of frozen components for a plan that reads them. The ranks must be connected.
  absl::StatusOr<std::shared_ptr<const trainer::FrozenOutputs>> ObtainFrozenCache(const TrainingInputs& inputs);
  // Returns the error that interrupts work outside of steps; each rank checks it on its own.
  absl::Status InterruptedBeforeSteps() const;
  // Reports this rank's address, waits for those of the others and connects.
  absl::Status Connect(const std::string& secret, const std::vector<transport::Lane>& lanes);
  absl::StatusOr<std::vector<std::string>> AwaitAddresses();
  absl::Status LoadCheckpoint();
  // Returns INTERNAL (TRAINING_DIVERGED) after reporting the divergence.
  absl::Status Diverged(const Divergence& divergence);
  absl::Status TrainToTheEnd(CheckpointWriter* writer);
  absl::Status OneStep(CheckpointWriter* writer);
  bool TraceIsDue(int64_t step) const;
  void Trace(int64_t step, absl::Duration began, absl::Duration ended, CheckpointWriter* writer);
  // Returns OK while training may continue.
  absl::Status Interrupted(int64_t step) const;
  int64_t LastStep() const;
  void Report(const trainer::StepResult& result);
  void RecordWaiting(absl::Duration step_time);

  const AttemptStart start_;
  const AttemptParts& parts_;
  const AttemptReports reports_;
  int64_t total_steps_ = 0;
  int64_t checkpoint_every_ = 0;
  int64_t batch_size_ = 0;
  int64_t first_step_ = 0;          // done before this attempt
  std::deque<std::string> traces_;  // URIs of the latest
  engine::Activity activity_;
  absl::Duration last_report_ = -absl::InfiniteDuration();

  std::unique_ptr<transport::Transport> transport_;  // set under mutex_, used by the compute thread and Abort
  std::unique_ptr<trainer::TrainingData> data_;
  std::unique_ptr<trainer::Trainer> trainer_;
  std::unique_ptr<DivergenceWatch> watch_;

  mutable absl::Mutex mutex_;
  std::optional<std::vector<std::string>> addresses_ ABSL_GUARDED_BY(mutex_);
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  int64_t stop_after_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: not asked to stop
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration step_time_ ABSL_GUARDED_BY(mutex_);
  LongestOfLatest checkpoint_times_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::worker
