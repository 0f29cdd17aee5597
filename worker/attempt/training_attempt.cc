#include "worker/attempt/training_attempt.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/formats/checkpoint.h"
#include "common/formats/step_trace.h"
#include "common/spec/data_cursor.h"
#include "worker/attempt/frozen_identity.h"
#include "worker/attempt/same_store.h"

namespace atl::worker {
namespace {

// The first steps pay for memory and caches that the later ones find.
constexpr int64_t kFirstTracedStep = 3;

// Processes that read the same one read the same monotonic clock.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace

TrainingAttempt::TrainingAttempt(AttemptStart start, const AttemptParts& parts, AttemptReports reports)
    : start_(std::move(start)), parts_(parts), reports_(std::move(reports)), activity_(parts.clock, parts.activity) {}

absl::Status TrainingAttempt::Run() {
  const absl::Status status = start_.profile_sizes.empty() ? Train() : Measure();
  if (!status.ok() && transport_ != nullptr) transport_->Abort(status);
  trainer_.reset();
  data_.reset();
  std::unique_ptr<transport::Transport> transport;  // its destructor joins a thread: not under the lock
  absl::MutexLock lock(&mutex_);
  transport = std::move(transport_);
  // After an abort every error is a consequence of it, so the abort's status is returned.
  return !status.ok() && !aborted_.ok() ? aborted_ : status;
}

absl::Status TrainingAttempt::Train() {
  absl::Status status;
  {
    CheckpointWriter writer(parts_.store, parts_.clock, start_.grant.write_prefix, start_.checkpoint_nonce,
                            [this](const absl::StatusOr<WrittenStages>& written) {
                              if (written.ok()) {
                                parts_.metrics->checkpoint_seconds->Observe(absl::ToDoubleSeconds(written->took));
                                {
                                  absl::MutexLock lock(&mutex_);
                                  checkpoint_times_.Add(written->took);
                                }
                                reports_.written(*written);
                              } else {
                                parts_.metrics->checkpoint_failures->Increment();
                                spdlog::warn("task {}: checkpoint not written: {}", start_.grant.token.task_id,
                                             written.status().ToString());
                              }
                            });
    status = Prepare();
    if (status.ok()) status = TrainToTheEnd(&writer);
    const absl::Status drained = writer.Drain();
    if (status.ok()) status = drained;
  }
  return status;
}

absl::Status TrainingAttempt::Measure() {
  ATOLL_ASSIGN_OR_RETURN(const TrainingInputs inputs, ReadInputs());
  // Not the secret of the training that follows under the same attempt: their transports must not meet.
  ATOLL_RETURN_IF_ERROR(
      Connect(start_.grant.token.attempt_secret + "/profile", trainer::ProfilerLanes(start_.plan.rank_count())));
  trainer::ProfilerOptions options{.trainer = inputs.options,
                                   .precision = start_.plan.precision,
                                   .micro_batch_sizes = start_.profile_sizes,
                                   .key = start_.profile_key};
  if (start_.profile_calibration) options = trainer::Calibration(std::move(options));
  options.interrupted = [this] { return InterruptedBeforeSteps(); };
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile profile, parts_.profile_rank(options, transport_.get()));
  reports_.profiled(profile);
  return absl::OkStatus();
}

absl::StatusOr<TrainingInputs> TrainingAttempt::ReadInputs() const {
  // If the leader's folder is not mounted here, every file is missing, which says nothing about the task.
  ATOLL_RETURN_IF_ERROR(CheckSameStore(*parts_.store, start_.epoch_uri));
  ATOLL_ASSIGN_OR_RETURN(TrainingInputs inputs, ReadTrainingInputs(parts_.store, start_.grant));
  inputs.options.threads = parts_.threads;
  inputs.options.device = device();
  return inputs;
}

absl::Status TrainingAttempt::Prepare() {
  ATOLL_ASSIGN_OR_RETURN(TrainingInputs inputs, ReadInputs());
  inputs.options.activity = &activity_;
  total_steps_ = inputs.options.training.steps;
  checkpoint_every_ = std::max(inputs.options.training.checkpoint_every, 1);
  batch_size_ = inputs.options.training.batch_size;
  watch_ = std::make_unique<DivergenceWatch>(inputs.options.training.explosion_factor);
  ATOLL_ASSIGN_OR_RETURN(data_, parts_.open_data(inputs));

  ATOLL_RETURN_IF_ERROR(Connect(start_.grant.token.attempt_secret, engine::LanesOf(start_.plan)));
  if (start_.plan.reads_frozen_cache) {
    ATOLL_ASSIGN_OR_RETURN(inputs.options.kept_outputs, ObtainFrozenCache(inputs));
  }
  ATOLL_ASSIGN_OR_RETURN(
      trainer_, parts_.make_trainer(inputs.options, start_.plan, start_.plan_rank, data_.get(), transport_.get()));
  return LoadCheckpoint();
}

absl::StatusOr<std::shared_ptr<const trainer::FrozenOutputs>> TrainingAttempt::ObtainFrozenCache(
    const TrainingInputs& inputs) {
  const int32_t ranks = start_.plan.rank_count();
  const absl::Duration start = parts_.clock->Monotonic();
  ATOLL_ASSIGN_OR_RETURN(
      auto outputs,
      parts_.obtain_frozen_cache(data_.get(), {.trainer = inputs.options,
                                               .folder = parts_.store->UriOf("frozen/" + FrozenCacheKey(inputs)),
                                               .rank = start_.plan_rank,
                                               .ranks = ranks,
                                               .interrupted = [this] { return InterruptedBeforeSteps(); },
                                               .meet = [this, ranks]() -> absl::Status {
                                                 if (ranks == 1) return absl::OkStatus();
                                                 // Others may still compute; a lost one makes the leader abort.
                                                 double here[1] = {1};
                                                 return transport_->AllReduceSum(here, absl::InfiniteDuration());
                                               }}));
  spdlog::info("task {} attempt {}: frozen outputs are there after {:.1f} s", start_.grant.token.task_id,
               start_.grant.token.attempt, absl::ToDoubleSeconds(parts_.clock->Monotonic() - start));
  return outputs;
}

absl::Status TrainingAttempt::InterruptedBeforeSteps() const {
  absl::MutexLock lock(&mutex_);
  return stop_after_ > 0 ? absl::CancelledError("asked to stop") : aborted_;
}

absl::Status TrainingAttempt::Connect(const std::string& secret, const std::vector<transport::Lane>& lanes) {
  const transport::AttemptIdentity identity{
      .incarnation = start_.incarnation, .attempt = start_.grant.token.attempt, .secret = secret};
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Transport> transport,
                         parts_.make_transport(device(), start_.plan_rank, start_.plan.rank_count(), identity));
  {
    absl::MutexLock lock(&mutex_);
    if (!aborted_.ok()) return aborted_;
    transport_ = std::move(transport);
  }
  reports_.ready(transport_->Address());
  ATOLL_RETURN_IF_ERROR(Failpoint("attempt.after_ready"));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, AwaitAddresses());
  return transport_->Connect(addresses, lanes, parts_.connect_timeout);
}

absl::StatusOr<std::vector<std::string>> TrainingAttempt::AwaitAddresses() {
  absl::MutexLock lock(&mutex_);
  const auto known = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return addresses_.has_value() || !aborted_.ok(); };
  // The leader aborts an attempt whose ranks do not all get ready in time, and a lost leader aborts it too.
  mutex_.Await(absl::Condition(&known));
  if (!aborted_.ok()) return aborted_;
  return *addresses_;
}

absl::Status TrainingAttempt::LoadCheckpoint() {
  if (start_.grant.resume_from.has_value()) {
    const spec::CommittedCheckpoint& from = *start_.grant.resume_from;
    ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointReader reader, ReadCheckpoint(parts_.store, from));
    ATOLL_RETURN_IF_ERROR(trainer_->Load(reader));
    ATOLL_RETURN_IF_ERROR(Failpoint("checkpoint.after_load"));
    spdlog::info("task {} attempt {}: resumed at step {}", start_.grant.token.task_id, start_.grant.token.attempt,
                 trainer_->step());
  }
  absl::MutexLock lock(&mutex_);
  step_ = trainer_->step();
  return absl::OkStatus();
}

absl::Status TrainingAttempt::TrainToTheEnd(CheckpointWriter* writer) {
  int64_t saved = first_step_ = trainer_->step();
  while (trainer_->step() < LastStep()) {
    ATOLL_RETURN_IF_ERROR(Interrupted(trainer_->step()));
    ATOLL_RETURN_IF_ERROR(writer->refused());
    ATOLL_RETURN_IF_ERROR(OneStep(writer));
    const int64_t step = trainer_->step();
    if (step % checkpoint_every_ == 0 || step == LastStep()) {
      ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<trainer::Trainer::Snapshot> snapshot, trainer_->TakeSnapshot());
      writer->Submit(std::move(snapshot));
      saved = step;
    }
  }
  ATOLL_RETURN_IF_ERROR(Interrupted(trainer_->step()));
  // Asked to stop just after this step was done, before a checkpoint of it was due.
  if (saved != trainer_->step()) {
    ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<trainer::Trainer::Snapshot> snapshot, trainer_->TakeSnapshot());
    writer->Submit(std::move(snapshot));
  }
  return absl::OkStatus();
}

absl::Status TrainingAttempt::OneStep(CheckpointWriter* writer) {
  const absl::Duration start = parts_.clock->Monotonic();
  const int64_t first_sample = spec::BatchStart(trainer_->samples_consumed(), 0, batch_size_, start_.grant.skipped);
  activity_.BeginStep();
  const absl::StatusOr<trainer::StepResult> stepped = trainer_->Step();
  activity_.EndStep();
  if (!stepped.ok()) {
    const auto divergence = watch_->OnFailedStep(trainer_->step() + 1, first_sample, stepped.status());
    return divergence ? Diverged(*divergence) : stepped.status();
  }
  const trainer::StepResult& result = *stepped;
  const absl::Duration ended = parts_.clock->Monotonic();
  const absl::Duration took = ended - start;
  {
    absl::MutexLock lock(&mutex_);
    step_ = result.step;
    step_time_ = took;
  }
  parts_.metrics->steps->Increment();
  parts_.metrics->step_seconds->Observe(absl::ToDoubleSeconds(took));
  RecordWaiting(took);
  Report(result);
  if (TraceIsDue(result.step)) Trace(result.step, trainer_->iteration_start(), ended, writer);
  const auto divergence = watch_->OnStep({result.step, result.loss, result.gradient_norm, first_sample});
  return divergence ? Diverged(*divergence) : absl::OkStatus();
}

absl::Status TrainingAttempt::Diverged(const Divergence& divergence) {
  parts_.metrics->divergences->Increment();
  reports_.diverged(divergence);
  return MakeError(absl::StatusCode::kInternal, "TRAINING_DIVERGED", divergence.message);
}

// The same steps on every rank: one early, then those that checkpoints are taken after.
bool TrainingAttempt::TraceIsDue(int64_t step) const {
  if (parts_.kept_traces < 1) return false;
  return step == first_step_ + kFirstTracedStep || step % checkpoint_every_ == 0 || step == LastStep();
}

void TrainingAttempt::Trace(int64_t step, absl::Duration began, absl::Duration ended, CheckpointWriter* writer) {
  const spec::LeaseToken& token = start_.grant.token;
  storage::StepTrace trace{.task_id = token.task_id,
                           .attempt = token.attempt,
                           .step = step,
                           .rank = start_.plan_rank,
                           .ranks = start_.plan.rank_count(),
                           .pipeline_ranks = start_.plan.schedule.rank_count(),
                           .generator = start_.plan.generator,
                           .boot_id = BootId(),
                           .start_monotonic = began,
                           .start_time = parts_.clock->Now() - (parts_.clock->Monotonic() - began),
                           .step_duration = ended - began};
  for (const engine::ActionTiming& timing : trainer_->timings()) {
    trace.actions.push_back({timing.action, timing.ready, timing.start, timing.end, timing.passed_on});
  }
  TraceFile file{.uri = storage::StepTraceUri(start_.grant.write_prefix, step, start_.plan_rank),
                 .text = storage::ToJson(trace)};
  if (step != first_step_ + kFirstTracedStep) traces_.push_back(file.uri);
  if (traces_.size() > static_cast<size_t>(parts_.kept_traces)) {
    file.superseded_uri = std::move(traces_.front());
    traces_.pop_front();
  }
  writer->SubmitTrace(std::move(file));
}

void TrainingAttempt::RecordWaiting(absl::Duration step_time) {
  absl::Duration waited;
  absl::Duration free_since;
  for (const engine::ActionTiming& timing : trainer_->timings()) {
    waited += timing.ready - free_since;
    free_since = timing.passed_on;
  }
  if (step_time > absl::ZeroDuration()) parts_.metrics->wait_ratio->Set(absl::FDivDuration(waited, step_time));
}

void TrainingAttempt::Report(const trainer::StepResult& result) {
  if (!result.has_loss) return;
  parts_.metrics->loss->Set(result.loss);
  const absl::Duration now = parts_.clock->Monotonic();
  if (now - last_report_ < parts_.report_interval && result.step < LastStep()) return;
  last_report_ = now;
  reports_.step_done(result);
}

absl::Status TrainingAttempt::Interrupted(int64_t step) const {
  absl::MutexLock lock(&mutex_);
  if (!aborted_.ok()) return aborted_;
  if (stop_after_ > 0 && step > stop_after_ && step < total_steps_) {
    return MakeError(absl::StatusCode::kAborted, "STOP_TOO_LATE",
                     fmt::format("asked to stop after step {}, found step {} done", stop_after_, step));
  }
  return absl::OkStatus();
}

int64_t TrainingAttempt::LastStep() const {
  absl::MutexLock lock(&mutex_);
  return stop_after_ > 0 ? std::min(stop_after_, total_steps_) : total_steps_;
}

void TrainingAttempt::Connect(std::vector<std::string> addresses) {
  absl::MutexLock lock(&mutex_);
  if (!addresses_.has_value()) addresses_ = std::move(addresses);
}

void TrainingAttempt::StopAfter(int64_t step) {
  absl::MutexLock lock(&mutex_);
  if (stop_after_ == 0) stop_after_ = step;
}

void TrainingAttempt::Abort(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  if (!aborted_.ok()) return;
  aborted_ = reason;
  if (transport_ != nullptr) transport_->Abort(reason);
}

AttemptProgress TrainingAttempt::progress() const {
  absl::MutexLock lock(&mutex_);
  return {
      .step = step_, .step_time = step_time_, .checkpoint_time = checkpoint_times_.value(), .stop_after = stop_after_};
}

}  // namespace atl::worker
