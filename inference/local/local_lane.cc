#include "inference/local/local_lane.h"

#include <algorithm>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

absl::Status Cancelled() {
  return MakeError(absl::StatusCode::kCancelled, "EVALUATION_CANCELLED", "the evaluation was cancelled before it ran");
}

}  // namespace

LocalLane::LocalLane(LaneInfo info, std::shared_ptr<NetworkMemory> memory, Evaluate evaluate, Clock* clock)
    : info_(std::move(info)),
      memory_(std::move(memory)),
      evaluate_(std::move(evaluate)),
      clock_(clock),
      thread_([this] { Work(); }) {}

LocalLane::~LocalLane() {
  std::deque<Batch> dropped;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    dropped.swap(waiting_);
  }
  for (const Batch& batch : dropped) Answer(batch, Cancelled());
  thread_.join();
  Watch(nullptr);
}

void LocalLane::Watch(std::function<void()> changed) {
  absl::MutexLock lock(&watch_mutex_);
  if (watcher_ != 0) memory_->watchers().Remove(watcher_);
  watcher_ = changed == nullptr ? 0 : memory_->watchers().Add(std::move(changed));
}

void LocalLane::Start(std::shared_ptr<const Evaluation> evaluation, Done done) {
  memory_->Expect(evaluation->network);
  absl::MutexLock lock(&mutex_);
  waiting_.push_back({.evaluation = std::move(evaluation), .done = std::move(done), .started = clock_->Monotonic()});
}

void LocalLane::Cancel(int64_t evaluation) {
  Batch batch;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Batch& batch) { return batch.evaluation->id == evaluation; });
    if (found == waiting_.end()) return;
    batch = std::move(*found);
    waiting_.erase(found);
  }
  Answer(batch, Cancelled());
}

void LocalLane::Work() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); };
  while (true) {
    Batch batch;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      batch = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Answer(batch, Compute(batch));
  }
}

absl::StatusOr<EvaluationAnswer> LocalLane::Compute(const Batch& batch) {
  if (clock_->Monotonic() > batch.evaluation->deadline) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "EVALUATION_EXPIRED",
                     "the evaluation's deadline passed before its turn came");
  }
  ATOLL_ASSIGN_OR_RETURN(Computed computed, evaluate_(*batch.evaluation));
  const absl::Duration all = clock_->Monotonic() - batch.started;
  return EvaluationAnswer{.values = std::move(computed.values),
                          .fingerprint = info_.fingerprint,
                          .compute_time = computed.compute_time,
                          .queue_time = all - computed.compute_time};
}

void LocalLane::Answer(const Batch& batch, absl::StatusOr<EvaluationAnswer> answer) {
  memory_->Arrived(batch.evaluation->network);
  batch.done(std::move(answer));
}

}  // namespace atl::router
