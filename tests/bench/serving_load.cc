#include "tests/bench/serving_load.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace atl::bench {

void WaitUntil(absl::Duration monotonic) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  static constexpr bool kNever = false;
  Clock::Real()->AwaitUntil(&mutex, absl::Condition(&kNever), monotonic);
}

class Flying::Events : public router::SampleEvents {
 public:
  Events(absl::Duration scheduled, absl::Duration start) : start_(start) { served_.scheduled = scheduled; }

  void OnQueued(int64_t, const std::string&) override {}
  void OnProgress(int32_t, int32_t) override {}
  void OnImage(router::SampledImage) override {
    absl::MutexLock lock(&mutex_);
    if (served_.images++ == 0) served_.first_image = Now();
  }
  void OnDone(const router::SampleReport& report) override {
    absl::MutexLock lock(&mutex_);
    served_.routing = report.routing;
    End(absl::OkStatus());
  }
  void OnError(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    End(status);
  }

  const ServedRequest& Await() {
    absl::MutexLock lock(&mutex_, absl::Condition(&ended_));
    return served_;
  }
  bool ended() {
    absl::MutexLock lock(&mutex_);
    return ended_;
  }
  int64_t images() {
    absl::MutexLock lock(&mutex_);
    return served_.images;
  }

 private:
  absl::Duration Now() const { return Clock::Real()->Monotonic() - start_; }
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    served_.status = status;
    served_.ended = Now();
    ended_ = true;
  }

  const absl::Duration start_;
  absl::Mutex mutex_;
  ServedRequest served_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

Flying::Flying(router::Engine* engine, const TimedRequest& timed, absl::Duration start)
    : events_(std::make_shared<Events>(timed.at, start)) {
  auto ticket = engine->Submit(timed.request, absl::InfiniteDuration(), events_);
  if (ticket.ok()) {
    ticket_ = *std::move(ticket);
  } else {
    events_->OnError(ticket.status());
  }
}

Flying::~Flying() = default;

const ServedRequest& Flying::Await() {
  return events_->Await();
}

int64_t Flying::images() const {
  return events_->images();
}

bool Flying::ended() const {
  return events_->ended();
}

std::vector<ServedRequest> Play(router::Engine* engine, std::span<const TimedRequest> requests) {
  const absl::Duration start = Clock::Real()->Monotonic();
  std::vector<std::unique_ptr<Flying>> flying;
  for (const TimedRequest& timed : requests) {
    WaitUntil(start + timed.at);
    flying.push_back(std::make_unique<Flying>(engine, timed, start));
  }
  std::vector<ServedRequest> served;
  for (const auto& request : flying) served.push_back(request->Await());
  return served;
}

std::vector<ServedRequest> PlayOneByOne(router::Engine* engine, std::span<const TimedRequest> requests) {
  const absl::Duration start = Clock::Real()->Monotonic();
  std::vector<ServedRequest> served;
  for (TimedRequest timed : requests) {
    timed.at = Clock::Real()->Monotonic() - start;
    served.push_back(Flying(engine, timed, start).Await());
  }
  return served;
}

absl::StatusOr<double> Makespan(std::span<const ServedRequest> served) {
  absl::Duration first = absl::InfiniteDuration();
  absl::Duration last = -absl::InfiniteDuration();
  for (const ServedRequest& request : served) {
    ATOLL_RETURN_IF_ERROR(request.status);
    first = std::min(first, request.scheduled);
    last = std::max(last, request.ended);
  }
  return absl::ToDoubleSeconds(last - first);
}

}  // namespace atl::bench
