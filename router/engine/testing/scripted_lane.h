// For tests: a lane that answers when the test says so.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/engine/testing/backend.h"
#include "router/engine/testing/inline_lane.h"

namespace atl::router {

// Thread-safe. Its destructor answers outstanding evaluations as cancelled.
class ScriptedLane : public ExpertLane {
 public:
  ScriptedLane(LaneInfo info, std::shared_ptr<ModelBackend> backend)
      : info_(std::move(info)), backend_(std::move(backend)) {
    std::vector<int32_t> all;
    for (int32_t expert = kRouterNetwork; expert < backend_->info().experts; ++expert) all.push_back(expert);
    Host(all);
  }
  ~ScriptedLane() override {
    for (auto& [id, job] : TakeJobs()) job.done(absl::CancelledError("the lane ends"));
  }

  // Hosts these networks from now on.
  void Host(const std::vector<int32_t>& experts) {
    auto hosted = std::make_shared<std::vector<HostedNetwork>>();
    const SamplerInfo& info = backend_->info();
    for (const int32_t expert : experts) {
      hosted->push_back({.id = {.model = info.model, .version = info.version, .expert = expert}});
    }
    std::function<void()> changed;
    {
      absl::MutexLock lock(&mutex_);
      hosted_ = std::move(hosted);
      changed = changed_;
    }
    if (changed) changed();
  }
  // Answers all started evaluations, in the order of starts; returns how many.
  int AnswerAll() {
    std::map<int64_t, Job> jobs = TakeJobs();
    for (auto& [id, job] : jobs) Answer(&job);
    return static_cast<int>(jobs.size());
  }
  void FailAll(const absl::Status& status) {
    for (auto& [id, job] : TakeJobs()) job.done(status);
  }
  // Answers evaluations past their deadline, as remote lanes do.
  void Expire(absl::Duration now) {
    std::vector<Done> late;
    {
      absl::MutexLock lock(&mutex_);
      std::erase_if(jobs_, [&](auto& entry) {
        if (now < entry.second.evaluation->deadline) return false;
        late.push_back(std::move(entry.second.done));
        return true;
      });
    }
    for (const Done& done : late) done(absl::DeadlineExceededError("no answer in time"));
  }
  std::vector<std::shared_ptr<const Evaluation>> started() {
    absl::MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<const Evaluation>> started;
    for (const auto& [id, job] : jobs_) started.push_back(job.evaluation);
    return started;
  }
  std::vector<int64_t> cancelled() {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }
  // The compute time that the lane reports for each row.
  absl::Duration row_time = absl::Milliseconds(1);

  LaneInfo info() const override { return info_; }
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const override {
    absl::MutexLock lock(&mutex_);
    return hosted_;
  }
  void Watch(std::function<void()> changed) override {
    absl::MutexLock lock(&mutex_);
    changed_ = std::move(changed);
  }
  void Start(std::shared_ptr<const Evaluation> evaluation, Done done) override {
    absl::MutexLock lock(&mutex_);
    const int64_t id = evaluation->id;
    jobs_[id] = {std::move(evaluation), std::move(done)};
  }
  void Cancel(int64_t evaluation) override {
    absl::MutexLock lock(&mutex_);
    cancelled_.push_back(evaluation);
  }

 private:
  struct Job {
    std::shared_ptr<const Evaluation> evaluation;
    Done done;
  };

  std::map<int64_t, Job> TakeJobs() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(jobs_, {});
  }
  void Answer(Job* job) {
    absl::StatusOr<std::vector<float>> values = EvaluateOn(backend_.get(), *job->evaluation);
    if (!values.ok()) return job->done(values.status());
    const int64_t rows = job->evaluation->rows.count * (job->evaluation->guided() ? 2 : 1);
    job->done(EvaluationAnswer{
        .values = *std::move(values), .fingerprint = info_.fingerprint, .compute_time = row_time * rows});
  }

  const LaneInfo info_;
  const std::shared_ptr<ModelBackend> backend_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const std::vector<HostedNetwork>> hosted_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> changed_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Job> jobs_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::router
