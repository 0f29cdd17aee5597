#include "tests/bench/open_loop.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "grpcpp/support/error_details.h"

namespace atl::bench {
namespace {

using namespace atlpb::sample::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

// A client that holds more at once measures itself: one more is not sent and fails with reason TOO_MANY_IN_FLIGHT.
constexpr int64_t kMaxInFlight = 4096;

// When a refused request may come again (google.rpc.RetryInfo); zero: the router did not say.
absl::Duration RetryDelayOf(const grpc::Status& status) {
  google::rpc::Status answer;
  if (status.error_details().empty() || !grpc::ExtractErrorDetails(status, &answer).ok()) return absl::ZeroDuration();
  for (const google::protobuf::Any& detail : answer.details()) {
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&retry)) return wire::FromProto(retry.retry_delay());
  }
  return absl::ZeroDuration();
}

// The state that the calls of one load share. Thread-safe.
class Load {
 public:
  explicit Load(size_t requests) : start_(Clock::Real()->Monotonic()), outcomes_(requests) {}

  absl::Duration now() const { return Clock::Real()->Monotonic() - start_; }

  void End(size_t index, RequestOutcome outcome) {
    absl::MutexLock lock(&mutex_);
    outcomes_[index] = std::move(outcome);
    ++ended_;
  }
  // Returns at `until` after the start, or once so many have ended.
  int64_t Await(absl::Duration until, int64_t ended) {
    absl::MutexLock lock(&mutex_);
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ >= ended; };
    Clock::Real()->AwaitUntil(&mutex_, absl::Condition(&enough), start_ + until);
    return ended_;
  }
  std::vector<RequestOutcome> Take() {
    absl::MutexLock lock(&mutex_);
    return std::move(outcomes_);
  }

 private:
  const absl::Duration start_;
  absl::Mutex mutex_;
  std::vector<RequestOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
};

// One request under way; deletes itself when the call is over.
class LoadCall : public grpc::ClientReadReactor<SampleResponse> {
 public:
  LoadCall(Load* load, size_t index, absl::Duration scheduled, SampleRequest request)
      : load_(load), index_(index), request_(std::move(request)) {
    outcome_.scheduled = scheduled;
  }

  void Start(SampleService::StubInterface* stub, absl::Duration timeout) {
    rpc::SetTimeout(&context_, timeout);
    outcome_.sent = load_->now();
    stub->async()->Sample(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_done()) outcome_.version = response_.done().version();
    if (response_.has_image()) {
      ++outcome_.images;
      if (!outcome_.first_image) outcome_.first_image = load_->now();
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    outcome_.ended = load_->now();
    outcome_.status = rpc::FromGrpc(status);
    outcome_.retry_delay = RetryDelayOf(status);
    if (status.ok() && outcome_.images != request_.classes_size()) {
      outcome_.status =
          MakeError(absl::StatusCode::kDataLoss, "STREAM_INCOMPLETE",
                    fmt::format("expected {} images, found {}", request_.classes_size(), outcome_.images));
    }
    // Destroys the call before End: after the last End, the waiting thread may end the process.
    Load* const load = load_;
    const size_t index = index_;
    RequestOutcome outcome = std::move(outcome_);
    delete this;
    load->End(index, std::move(outcome));
  }

 private:
  Load* const load_;
  const size_t index_;
  const SampleRequest request_;
  grpc::ClientContext context_;
  SampleResponse response_;
  RequestOutcome outcome_;
};

}  // namespace

std::vector<RequestOutcome> DriveOpenLoop(SampleService::StubInterface* stub, std::span<const absl::Duration> arrivals,
                                          const std::function<SampleRequest(size_t)>& request,
                                          absl::Duration request_timeout,
                                          const std::function<void(int64_t sent, int64_t ended)>& tick) {
  constexpr absl::Duration kTick = absl::Milliseconds(250);
  Load load(arrivals.size());
  absl::Duration next_tick = kTick;
  int64_t ended = 0;
  const auto total = static_cast<int64_t>(arrivals.size());
  // Waits for `until`, or for as many ends; calls `tick` meanwhile.
  const auto wait = [&](int64_t sent, absl::Duration until, int64_t ends) {
    do {
      ended = load.Await(std::min(until, next_tick), ends);
      if (load.now() < next_tick) continue;
      tick(sent, ended);
      next_tick = load.now() + kTick;
    } while (load.now() < until && ended < ends);
  };
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const auto sent = static_cast<int64_t>(i);
    wait(sent, arrivals[i], total);
    if (sent - ended >= kMaxInFlight) {
      const absl::Duration now = load.now();
      load.End(i, {.scheduled = arrivals[i],
                   .sent = now,
                   .ended = now,
                   .status = MakeError(absl::StatusCode::kFailedPrecondition, "TOO_MANY_IN_FLIGHT",
                                       fmt::format("{} requests are under way already", sent - ended))});
      continue;
    }
    auto* const call = new LoadCall(&load, i, arrivals[i], request(i));  // deletes itself
    call->Start(stub, request_timeout);
  }
  wait(total, absl::InfiniteDuration(), total);
  return load.Take();
}

}  // namespace atl::bench
