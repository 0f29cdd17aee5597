// The compute thread of a rank: runs training attempts one after the other, as the leader commands. Commands and
// reports are the rendezvous messages, also on the leader's own rank.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "atoll/island/v1/rendezvous_service.pb.h"
#include "worker/attempt/training_attempt.h"

namespace atl::worker {

// Thread-safe. Owns the compute thread; the destructor aborts the running attempt and joins it.
class RankRunner {
 public:
  // Called on the runner's threads; must not block.
  using Report = std::function<void(atlpb::island::v1::JoinRequest)>;

  RankRunner(AttemptParts parts, Report report);
  ~RankRunner();

  // Handles StartAttempt, Connect, StopAfter, AbortAttempt and StorageRenewed; ignores other commands. Never blocks. A
  // command for another attempt than the current one changes nothing. A start with a lower incarnation than seen before
  // is rejected, unless its store epoch is later: a coordinator that lost its store counts incarnations anew.
  void Handle(const atlpb::island::v1::JoinResponse& command);
  // Aborts the running attempt and drops the waiting one.
  void AbortAll(const absl::Status& reason);
  // Blocks until no attempt runs or waits; returns false after `timeout`.
  bool AwaitIdle(absl::Duration timeout);
  bool busy() const;

  // Returns the progress of the running attempt, or zeros if there is none.
  AttemptProgress progress() const;
  // The running attempt and its overdue work.
  struct OverdueAttempt {
    int64_t attempt = 0;
    engine::Overdue overdue;
  };
  std::optional<OverdueAttempt> FindOverdue() const;

 private:
  void Loop();
  void Start(const atlpb::island::v1::StartAttempt& start);
  void RunOne(TrainingAttempt* attempt);
  AttemptReports ReportsOf(int64_t attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AttemptParts parts_;
  const Report report_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<TrainingAttempt> next_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<TrainingAttempt> current_ ABSL_GUARDED_BY(mutex_);
  int64_t store_epoch_ ABSL_GUARDED_BY(mutex_) = 0;  // the highest seen
  int64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;  // the highest seen in it
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::worker
