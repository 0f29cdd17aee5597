// Spreads batches over the lanes of this process, first come, first served. A batch goes to a lane that has its
// network; if no lane has it, to a lane that loads it.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "inference/lane.h"

namespace atl::worker {

// How one batch ended.
struct BatchEnd {
  NetworkId network;
  int64_t rows = 0;
  absl::StatusCode outcome = absl::StatusCode::kOk;
  absl::Duration compute_time;  // of kOk
  absl::Duration queue_time;    // of kOk
};

// Thread-safe; blocks only in AwaitIdle and the destructor. Batches wait here and not in a lane, so that the lane that
// is free first takes them. Never calls `done` under a lock.
class LaneQueue {
 public:
  // `ended` (may be empty) is called before each batch's `done`, and also never under a lock. `clock` must outlive the
  // queue.
  LaneQueue(std::vector<std::shared_ptr<router::ExpertLane>> lanes, Clock* clock,
            std::function<void(const BatchEnd&)> ended = nullptr);
  // Answers waiting batches with UNAVAILABLE, cancels running ones and waits for their end.
  ~LaneQueue();
  LaneQueue(const LaneQueue&) = delete;
  LaneQueue& operator=(const LaneQueue&) = delete;

  // `done` is called exactly once, possibly inside Submit: with the lane's answer, NOT_FOUND with reason
  // NETWORK_NOT_HOSTED, DEADLINE_EXCEEDED when the evaluation's deadline passed before it started, or CANCELLED.
  void Submit(std::shared_ptr<const router::Evaluation> evaluation, router::ExpertLane::Done done);
  // Answers a waiting batch with CANCELLED; cancels a running one in its lane. Unknown ids change nothing.
  void Cancel(int64_t evaluation);

  // Returns how many batches are evaluated side by side.
  int32_t slots() const;
  size_t waiting() const;
  // Blocks until no batch waits or runs, at most until `deadline` of the monotonic clock.
  bool AwaitIdle(absl::Duration deadline);

 private:
  using EvaluationPtr = std::shared_ptr<const router::Evaluation>;
  struct Waiting {
    EvaluationPtr evaluation;
    router::ExpertLane::Done done;
    absl::Duration since;
  };
  struct LaneState {
    std::shared_ptr<const std::vector<router::HostedNetwork>> hosted;
    size_t slots = 1;
    std::vector<int64_t> running;  // evaluations
  };
  struct Leaving {
    router::ExpertLane::Done done;
    absl::Status status;
  };
  struct Next {
    Waiting batch;
    size_t lane = 0;
  };

  // Starts all batches that can start. Only one thread dispatches, because a lane that answers inside Start re-enters.
  void Dispatch();
  // Asks the lanes which networks they host; called by the dispatching thread only.
  void AskLanes();
  void OnLaneChanged();
  // Moves batches that can no longer run to `leaving`, and takes the first batch that can run now.
  bool TakeNext(std::vector<Leaving>* leaving, Next* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the lane to run the network on, or -1. `hosted` reports whether any lane, busy or free, hosts it.
  int FindLane(const NetworkId& network, bool* hosted) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartOn(Next next);
  router::ExpertLane::Done Observed(const EvaluationPtr& evaluation, router::ExpertLane::Done done) const;

  Clock* const clock_;
  const std::vector<std::shared_ptr<router::ExpertLane>> lanes_;
  const std::function<void(const BatchEnd&)> ended_;
  mutable absl::Mutex mutex_;
  std::vector<LaneState> states_ ABSL_GUARDED_BY(mutex_);  // by lane
  std::list<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool dispatching_ ABSL_GUARDED_BY(mutex_) = false;
  bool look_again_ ABSL_GUARDED_BY(mutex_) = false;  // something changed while a thread dispatched
  bool ask_lanes_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // started, `done` has not returned yet
};

}  // namespace atl::worker
