#include "worker/attempt/rank_runner.h"

#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/errors.h"
#include "common/formats/profile_file.h"
#include "common/wire/plan_wire.h"
#include "common/wire/task_wire.h"
#include "worker/attempt/granted_keys.h"

namespace atl::worker {

using atlpb::island::v1::JoinRequest;
using atlpb::island::v1::JoinResponse;

namespace {

JoinRequest EndedMessage(int64_t attempt, const absl::Status& status, int64_t step) {
  JoinRequest request;
  auto* ended = request.mutable_attempt_ended();
  ended->set_attempt(attempt);
  ended->set_code(absl::StatusCodeToString(status.code()));
  ended->set_message(std::string(status.message()));
  ended->set_reason(ErrorReason(status));
  ended->set_step(step);
  return request;
}

}  // namespace

RankRunner::RankRunner(AttemptParts parts, Report report)
    : parts_(std::move(parts)), report_(std::move(report)), thread_([this] { Loop(); }) {}

RankRunner::~RankRunner() {
  AbortAll(absl::CancelledError("the process ends"));
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

void RankRunner::Handle(const JoinResponse& command) {
  if (command.has_start()) return Start(command.start());
  absl::MutexLock lock(&mutex_);
  TrainingAttempt* const attempt = next_ != nullptr ? next_.get() : current_.get();
  if (attempt == nullptr) return;
  const int64_t id = attempt->start().grant.token.attempt;
  if (command.has_connect() && command.connect().attempt() == id) {
    attempt->Connect({command.connect().transport_addresses().begin(), command.connect().transport_addresses().end()});
  } else if (command.has_stop_after() && command.stop_after().attempt() == id) {
    attempt->StopAfter(command.stop_after().step());
  } else if (command.has_storage_renewed() && command.storage_renewed().attempt() == id) {
    const absl::Status usable = parts_.store->UseKeys(KeysOf(wire::FromProto(command.storage_renewed().storage())));
    if (!usable.ok()) spdlog::error("attempt {}: {}", id, usable.ToString());
  } else if (command.has_abort() && command.abort().attempt() == id) {
    attempt->Abort(MakeError(absl::StatusCode::kAborted, "ATTEMPT_ABORTED", command.abort().reason()));
  }
}

void RankRunner::Start(const atlpb::island::v1::StartAttempt& start) {
  const int64_t id = start.grant().token().attempt();
  absl::StatusOr<spec::TaskGrant> grant = wire::FromProto(start.grant());
  absl::StatusOr<planner::Plan> plan = wire::FromProto(start.plan());
  absl::Status refused = !grant.ok() ? grant.status() : plan.status();
  {
    absl::MutexLock lock(&mutex_);
    const int64_t epoch = start.grant().token().store_epoch();
    if (refused.ok() && std::pair(epoch, start.incarnation()) < std::pair(store_epoch_, incarnation_)) {
      refused = MakeError(absl::StatusCode::kAborted, "STALE_INCARNATION",
                          fmt::format("attempt {}: expected incarnation {} of store epoch {} or later, found {} of {}",
                                      id, incarnation_, store_epoch_, start.incarnation(), epoch));
    }
    // Here, in the order in which keys come: the attempt before is over, and renewed ones may follow at once.
    if (refused.ok()) refused = parts_.store->UseKeys(KeysOf(grant->storage));
    if (refused.ok()) {
      store_epoch_ = epoch;
      incarnation_ = start.incarnation();
      const auto& sizes = start.profile().micro_batch_sizes();
      next_ = std::make_shared<TrainingAttempt>(AttemptStart{.incarnation = start.incarnation(),
                                                             .grant = *std::move(grant),
                                                             .plan = *std::move(plan),
                                                             .plan_rank = start.plan_rank(),
                                                             .device = start.device(),
                                                             .checkpoint_nonce = start.checkpoint_nonce(),
                                                             .epoch_uri = start.epoch_uri(),
                                                             .profile_sizes = {sizes.begin(), sizes.end()},
                                                             .profile_key = start.profile().key(),
                                                             .profile_calibration = start.profile().calibration()},
                                                parts_, ReportsOf(id));
    }
  }
  if (!refused.ok()) report_(EndedMessage(id, refused, 0));
}

AttemptReports RankRunner::ReportsOf(int64_t attempt) {
  const auto ready = [this, attempt, incarnation = incarnation_](const std::string& address) {
    JoinRequest request;
    request.mutable_ready()->set_incarnation(incarnation);
    request.mutable_ready()->set_attempt(attempt);
    request.mutable_ready()->set_transport_address(address);
    report_(std::move(request));
  };
  const auto written = [this, attempt](const WrittenStages& stages) {
    JoinRequest request;
    auto* message = request.mutable_stage_files();
    message->set_attempt(attempt);
    message->set_step(stages.manifest.step);
    for (const storage::CheckpointFile& file : stages.manifest.files) {
      auto* added = message->add_files();
      added->set_name(file.name);
      added->set_bytes(file.bytes);
      added->set_sha256(file.sha256);
    }
    storage::CheckpointManifest manifest = stages.manifest;
    manifest.files.clear();
    message->set_manifest(storage::ToJson(manifest));
    report_(std::move(request));
  };
  const auto step_done = [this, attempt](const trainer::StepResult& result) {
    JoinRequest request;
    auto* message = request.mutable_step_done();
    message->set_attempt(attempt);
    message->set_step(result.step);
    message->set_has_loss(result.has_loss);
    message->set_loss(result.loss);
    message->set_gradient_norm(result.gradient_norm);
    message->mutable_metrics()->insert(result.metrics.begin(), result.metrics.end());
    report_(std::move(request));
  };
  const auto diverged = [this, attempt](const Divergence& divergence) {
    JoinRequest request;
    auto* message = request.mutable_diverged();
    message->set_attempt(attempt);
    message->set_step(divergence.step);
    message->set_first_bad_step(divergence.first_bad_step);
    message->set_cause(divergence.cause);
    message->set_message(divergence.message);
    for (const WatchedStep& step : divergence.steps) {
      auto* added = message->add_steps();
      added->set_step(step.step);
      added->set_loss(step.loss);
      added->set_gradient_norm(step.gradient_norm);
      added->set_first_sample(step.first_sample);
    }
    report_(std::move(request));
  };
  const auto profiled = [this, attempt](const planner::Profile& profile) {
    JoinRequest request;
    request.mutable_rank_profile()->set_attempt(attempt);
    request.mutable_rank_profile()->set_profile(storage::ToJson(profile));
    report_(std::move(request));
  };
  return {.ready = ready, .written = written, .step_done = step_done, .diverged = diverged, .profiled = profiled};
}

void RankRunner::Loop() {
  for (;;) {
    std::shared_ptr<TrainingAttempt> attempt;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return next_ != nullptr || closing_; };
      mutex_.Await(absl::Condition(&due));
      if (closing_) return;
      attempt = current_ = std::move(next_);
    }
    RunOne(attempt.get());
    absl::MutexLock lock(&mutex_);
    current_.reset();
  }
}

void RankRunner::RunOne(TrainingAttempt* attempt) {
  const spec::LeaseToken& token = attempt->start().grant.token;
  spdlog::info("task {} attempt {}: rank {} of {} starts on {}{}", token.task_id, token.attempt,
               attempt->start().plan_rank, attempt->start().plan.rank_count(), attempt->device(),
               attempt->start().profile_sizes.empty() ? "" : " to measure");
  parts_.metrics->attempts->Increment();
  const absl::Status status = attempt->Run();
  const int64_t step = attempt->progress().step;
  if (status.ok()) {
    spdlog::info("task {} attempt {}: ended at step {}", token.task_id, token.attempt, step);
  } else {
    parts_.metrics->attempt_failures->Increment();
    spdlog::warn("task {} attempt {}: ended after step {}: {}", token.task_id, token.attempt, step, status.ToString());
  }
  report_(EndedMessage(token.attempt, status, step));
}

void RankRunner::AbortAll(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  next_.reset();
  if (current_ != nullptr) current_->Abort(reason);
}

bool RankRunner::AwaitIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return current_ == nullptr && next_ == nullptr; };
  return parts_.clock->AwaitUntil(&mutex_, absl::Condition(&idle), parts_.clock->Monotonic() + timeout);
}

std::optional<RankRunner::OverdueAttempt> RankRunner::FindOverdue() const {
  absl::MutexLock lock(&mutex_);
  if (current_ == nullptr) return std::nullopt;
  std::optional<engine::Overdue> overdue = current_->FindOverdue();
  if (!overdue) return std::nullopt;
  return OverdueAttempt{.attempt = current_->start().grant.token.attempt, .overdue = *std::move(overdue)};
}

bool RankRunner::busy() const {
  absl::MutexLock lock(&mutex_);
  return current_ != nullptr || next_ != nullptr;
}

AttemptProgress RankRunner::progress() const {
  absl::MutexLock lock(&mutex_);
  return current_ == nullptr ? AttemptProgress{} : current_->progress();
}

}  // namespace atl::worker
