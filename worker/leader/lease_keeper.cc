#include "worker/leader/lease_keeper.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "common/base/errors.h"

namespace atl::worker {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(250);

}  // namespace

LeaseKeeper::LeaseKeeper(CoordinatorClient* coordinator, Clock* clock, Events events)
    : coordinator_(coordinator), clock_(clock), events_(std::move(events)), thread_([this] { Loop(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

void LeaseKeeper::SetInterval(absl::Duration interval) {
  absl::MutexLock lock(&mutex_);
  interval_ = std::max(interval, absl::Milliseconds(10));
  next_beat_ = clock_->Monotonic() + interval_;
}

void LeaseKeeper::Hold(const spec::LeaseToken& token) {
  absl::MutexLock lock(&mutex_);
  lease_ = token;
  settling_ = false;
  drain_told_ = false;
  progress_.reset();
  step_time_ = absl::ZeroDuration();
}

void LeaseKeeper::Settling() {
  absl::MutexLock lock(&mutex_);
  settling_ = true;
  progress_.reset();
}

void LeaseKeeper::LetGo() {
  absl::MutexLock lock(&mutex_);
  lease_.reset();
  progress_.reset();
  step_time_ = absl::ZeroDuration();
}

void LeaseKeeper::ReportStepTime(absl::Duration step_time) {
  absl::MutexLock lock(&mutex_);
  step_time_ = step_time;
}

void LeaseKeeper::Report(const spec::Progress& progress) {
  absl::MutexLock lock(&mutex_);
  if (lease_.has_value() && !settling_) progress_ = progress;
}

void LeaseKeeper::Loop() {
  for (;;) {
    bool beat = false;
    {
      absl::MutexLock lock(&mutex_);
      // Waits for the first of: end, the next heartbeat, progress to send. A change of the three wakes it.
      const absl::Duration next_beat = next_beat_;
      const bool reporting = progress_.has_value();
      const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return closing_ || next_beat_ != next_beat || progress_.has_value() != reporting;
      };
      clock_->AwaitUntil(&mutex_, absl::Condition(&changed),
                         reporting ? std::min(next_beat, next_progress_) : next_beat);
      if (closing_) return;
      const absl::Duration now = clock_->Monotonic();
      beat = now >= next_beat_;
      if (beat) next_beat_ = now + interval_;
    }
    if (beat) Beat();
    SendProgress();
  }
}

void LeaseKeeper::Beat() {
  std::vector<spec::LeaseToken> leases;
  absl::Duration step_time;
  {
    absl::MutexLock lock(&mutex_);
    if (lease_.has_value()) leases.push_back(*lease_);
    step_time = step_time_;
  }
  const int64_t incarnation = coordinator_->incarnation();
  const auto answer = coordinator_->Heartbeat(++sequence_, leases, step_time);
  if (!answer.ok()) {
    // An unreachable coordinator stops nothing. A coordinator that knows a later incarnation, or rejects the island,
    // ends this one, because its results could not be committed.
    const absl::StatusCode code = answer.status().code();
    const bool shut_out = absl::IsPermissionDenied(answer.status()) ||
                          (absl::IsUnauthenticated(answer.status()) && !coordinator_->TriesAgain(answer.status()));
    if (shut_out || code == absl::StatusCode::kAborted || code == absl::StatusCode::kNotFound ||
        code == absl::StatusCode::kFailedPrecondition) {
      events_.superseded(answer.status(), incarnation);
    }
    return;
  }
  if (leases.empty()) return;
  for (const auto& verdict : answer->revoked()) {
    if (verdict.task_id() == leases[0].task_id) OnVerdict(leases[0], verdict.reason());
  }
  if (!answer->drain_reason().empty()) OnDrain(leases[0], "the island is drained: " + answer->drain_reason());
  for (const auto& verdict : answer->stopping()) {
    if (verdict.task_id() == leases[0].task_id) OnDrain(leases[0], verdict.reason());
  }
}

void LeaseKeeper::SendProgress() {
  spec::LeaseToken token;
  spec::Progress progress;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_->Monotonic();
    if (!lease_.has_value() || !progress_.has_value() || now < next_progress_) return;
    token = *lease_;
    progress = *std::exchange(progress_, std::nullopt);
    next_progress_ = now + kProgressInterval;
  }
  const absl::Status status = coordinator_->ReportProgress(token, ++sequence_, progress);
  if (absl::IsAborted(status)) OnVerdict(token, ErrorReason(status));
}

void LeaseKeeper::OnDrain(const spec::LeaseToken& token, const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!lease_.has_value() || !(*lease_ == token) || settling_ || drain_told_) return;
    drain_told_ = true;
  }
  spdlog::info("task {} attempt {}: the coordinator wants it back: {}", token.task_id, token.attempt, reason);
  events_.drain(token, reason);
}

void LeaseKeeper::OnVerdict(const spec::LeaseToken& token, const std::string& reason) {
  {
    absl::MutexLock lock(&mutex_);
    // Between the call and its answer the lease may have been given back, or another taken.
    if (!lease_.has_value() || !(*lease_ == token) || settling_) return;
    lease_.reset();
    progress_.reset();
  }
  spdlog::warn("task {} attempt {}: the lease is revoked: {}", token.task_id, token.attempt, reason);
  events_.revoked(token, reason);
}

}  // namespace atl::worker
