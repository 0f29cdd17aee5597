// A lane in this process: one thread that evaluates batches one after the other.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "inference/lane.h"
#include "inference/local/network_memory.h"

namespace atl::router {

// Hosts the networks of its memory. When a batch's turn comes after its deadline, it is answered DEADLINE_EXCEEDED with
// reason EVALUATION_EXPIRED. The destructor answers waiting batches with CANCELLED, finishes the running one, and joins
// the thread. `done` is called on that thread or on the caller's.
class LocalLane : public ExpertLane {
 public:
  struct Computed {
    std::vector<float> values;
    absl::Duration compute_time;  // without waiting or loading
  };
  // Evaluates on the lane's thread. Blocks.
  using Evaluate = std::function<absl::StatusOr<Computed>(const Evaluation& evaluation)>;

  // `clock` must outlive the lane.
  LocalLane(LaneInfo info, std::shared_ptr<NetworkMemory> memory, Evaluate evaluate, Clock* clock);
  ~LocalLane() override;
  LocalLane(const LocalLane&) = delete;
  LocalLane& operator=(const LocalLane&) = delete;

  LaneInfo info() const override { return info_; }
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const override { return memory_->hosted(); }
  void Watch(std::function<void()> changed) override;
  void Start(std::shared_ptr<const Evaluation> evaluation, Done done) override;
  // Answers a waiting batch with CANCELLED; a running one continues.
  void Cancel(int64_t evaluation) override;

 private:
  struct Batch {
    std::shared_ptr<const Evaluation> evaluation;
    Done done;
    absl::Duration started;
  };
  void Work();
  absl::StatusOr<EvaluationAnswer> Compute(const Batch& batch);
  void Answer(const Batch& batch, absl::StatusOr<EvaluationAnswer> answer);

  const LaneInfo info_;
  const std::shared_ptr<NetworkMemory> memory_;
  const Evaluate evaluate_;
  Clock* const clock_;

  absl::Mutex watch_mutex_;  // one Watch at a time
  int64_t watcher_ ABSL_GUARDED_BY(watch_mutex_) = 0;

  absl::Mutex mutex_;
  std::deque<Batch> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
