// A lane for tests that answers on request.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "inference/lane.h"

namespace atl::worker {

// Thread-safe. Holds started evaluations until Answer.
class FakeLane : public router::ExpertLane {
 public:
  FakeLane(router::LaneInfo info, std::vector<router::HostedNetwork> hosted) : info_(std::move(info)) {
    SetHosted(std::move(hosted));
  }
  ~FakeLane() override { AnswerAll(absl::CancelledError("the test is over")); }

  router::LaneInfo info() const override { return info_; }
  std::shared_ptr<const std::vector<router::HostedNetwork>> hosted() const override {
    absl::MutexLock lock(&mutex_);
    return hosted_;
  }
  void Watch(std::function<void()> changed) override {
    absl::MutexLock lock(&mutex_);
    changed_ = std::move(changed);
  }
  void Start(std::shared_ptr<const router::Evaluation> evaluation, Done done) override {
    absl::MutexLock lock(&mutex_);
    held_.push_back({std::move(evaluation), std::move(done)});
    ++started_;
  }
  void Cancel(int64_t evaluation) override {
    absl::MutexLock lock(&mutex_);
    cancelled_.push_back(evaluation);
  }

  void SetHosted(std::vector<router::HostedNetwork> hosted) {
    std::function<void()> changed;
    {
      absl::MutexLock lock(&mutex_);
      hosted_ = std::make_shared<const std::vector<router::HostedNetwork>>(std::move(hosted));
      changed = changed_;
    }
    if (changed) changed();
  }
  // Answers the oldest held evaluation; there must be one.
  void Answer(absl::StatusOr<router::EvaluationAnswer> answer) {
    Held held;
    {
      absl::MutexLock lock(&mutex_);
      held = std::move(held_.front());
      held_.pop_front();
    }
    held.done(std::move(answer));
  }
  // Answers with the rows' own x.
  void Echo() {
    router::EvaluationAnswer answer{.fingerprint = info_.fingerprint, .compute_time = absl::Milliseconds(3)};
    {
      absl::MutexLock lock(&mutex_);
      answer.values = held_.front().evaluation->rows.x;
    }
    Answer(std::move(answer));
  }
  void AnswerAll(const absl::Status& status) {
    while (held() > 0) Answer(status);
  }

  size_t held() const {
    absl::MutexLock lock(&mutex_);
    return held_.size();
  }
  int64_t started() const {
    absl::MutexLock lock(&mutex_);
    return started_;
  }
  std::vector<int64_t> cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }
  std::shared_ptr<const router::Evaluation> oldest() const {
    absl::MutexLock lock(&mutex_);
    return held_.front().evaluation;
  }
  // Returns false if fewer than `count` evaluations were held in time.
  bool AwaitHeld(size_t count, absl::Duration patience = absl::Seconds(30)) const {
    return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return held_.size() >= count; }, patience);
  }
  bool AwaitStarted(int64_t count, absl::Duration patience = absl::Seconds(30)) const {
    return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return started_ >= count; }, patience);
  }
  bool AwaitCancelled(size_t count, absl::Duration patience = absl::Seconds(30)) const {
    return Await([&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return cancelled_.size() >= count; }, patience);
  }

 private:
  template <typename Condition>
  bool Await(const Condition& condition, absl::Duration patience) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&condition), patience);
  }

  struct Held {
    std::shared_ptr<const router::Evaluation> evaluation;
    Done done;
  };

  const router::LaneInfo info_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const std::vector<router::HostedNetwork>> hosted_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> changed_ ABSL_GUARDED_BY(mutex_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
  int64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::worker
