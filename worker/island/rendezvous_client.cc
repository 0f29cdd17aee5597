#include "worker/island/rendezvous_client.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/backoff.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "common/wire/time_wire.h"

namespace atl::worker {

using atlpb::island::v1::JoinRequest;
using atlpb::island::v1::JoinResponse;

// One stream. Its callbacks lock the client's mutex, which also wakes Run's thread.
class RendezvousClient::Call final : public grpc::ClientBidiReactor<JoinRequest, JoinResponse> {
 public:
  Call(atlpb::island::v1::RendezvousService::Stub* stub, absl::Mutex* mutex) : mutex_(mutex) {
    // A stream of an island lives as long as the island: silence ends it, not a deadline.
    stub->async()->Join(&context_, this);
    AddHold();  // writes are started outside reactions; without it they race with gRPC's freeing of the stream
    StartRead(&reading_);
    StartCall();
  }

  ~Call() override {
    context_.TryCancel();
    absl::MutexLock lock(mutex_);
    mutex_->Await(absl::Condition(&done_));
  }

  // All with the client's mutex held.
  bool Wakes() const { return done_ || !incoming_.empty(); }
  bool writable() const { return !writing_ && !ended_; }
  bool done() const { return done_; }
  // The stream has ended and all messages were taken: the leader's last ones may arrive together with the end.
  bool exhausted() const { return done_ && incoming_.empty(); }
  const absl::Status& final_status() const { return final_; }
  std::deque<JoinResponse> TakeIncoming() { return std::exchange(incoming_, {}); }

  void Write(JoinRequest message) {
    writing_ = true;
    written_ = std::move(message);
    StartWrite(&written_);
  }
  void EndWrites() { StartWritesDone(); }

 private:
  void OnReadDone(bool ok) override {
    absl::MutexLock lock(mutex_);
    if (!ok) {
      ended_ = true;
      RemoveHold();
      return;
    }
    incoming_.push_back(std::move(reading_));
    reading_.Clear();
    StartRead(&reading_);
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(mutex_);
    writing_ = false;
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(mutex_);
    final_ = status.ok() ? absl::UnavailableError("the leader ended the stream") : rpc::FromGrpc(status);
    done_ = true;
  }

  absl::Mutex* const mutex_;
  grpc::ClientContext context_;
  JoinResponse reading_;
  JoinRequest written_;
  std::deque<JoinResponse> incoming_;
  bool writing_ = false;
  bool ended_ = false;  // reads have failed: no write may start
  bool done_ = false;
  absl::Status final_;
};

namespace {

bool RefusedForGood(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason == "WRONG_ISLAND_SECRET" || reason == "WRONG_BUILD" || reason == "RANK_OUT_OF_RANGE" ||
         reason == "DEVICE_TAKEN";
}

bool IslandEnded(const absl::Status& status) {
  return ErrorReason(status) == "ISLAND_ENDED";
}

}  // namespace

RendezvousClient::RendezvousClient(RendezvousOptions options, Clock* clock, WorkerMetrics* metrics)
    : options_(std::move(options)),
      clock_(clock),
      metrics_(metrics),
      stub_(atlpb::island::v1::RendezvousService::NewStub(rpc::MakeChannel(options_.leader, options_.credentials))) {}

RendezvousClient::~RendezvousClient() = default;

void RendezvousClient::Send(JoinRequest message) {
  absl::MutexLock lock(&mutex_);
  if (joined_) outgoing_.push_back(std::move(message));
}

void RendezvousClient::Stop(StopRequest request) {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
  leave_due_ = true;
  stop_ = std::move(request);
}

absl::Status RendezvousClient::Run(RankRunner* runner) {
  Backoff backoff({.first = options_.retry_delay, .longest = options_.retry_delay});
  std::string last_error;
  for (;;) {
    // A rank that still unwinds an attempt must not be counted on for the next one.
    if (!runner->AwaitIdle(options_.hung_timeout)) {
      const absl::Status hung =
          MakeError(absl::StatusCode::kDeadlineExceeded, "RANK_HUNG",
                    fmt::format("rank {}: expected an aborted attempt to end within {:.0f} s, found it at work",
                                options_.rank, absl::ToDoubleSeconds(options_.hung_timeout)));
      if (options_.hung) options_.hung(hung);
      return hung;
    }
    const absl::Status status = ServeOnce(runner);
    runner->AbortAll(status.ok() ? absl::CancelledError("the process ends") : status);
    if (status.ok() || RefusedForGood(status) || IslandEnded(status)) return status;
    if (status.ToString() != last_error)
      spdlog::warn("not with the leader at {}: {}", options_.leader, status.ToString());
    last_error = status.ToString();
    absl::MutexLock lock(&mutex_);
    clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + backoff.Next());
    if (stopping_) return absl::OkStatus();
  }
}

absl::Status RendezvousClient::ServeOnce(RankRunner* runner) {
  Call call(stub_.get(), &mutex_);
  JoinRequest hello;
  hello.mutable_hello()->set_rank(options_.rank);
  hello.mutable_hello()->set_island_secret(options_.secret);
  hello.mutable_hello()->set_build(options_.build);
  hello.mutable_hello()->set_where(options_.where);
  for (const RankDevice& device : options_.devices) {
    auto* added = hello.mutable_hello()->add_devices();
    added->set_label(device.label);
    added->set_id(device.id);
  }
  {
    absl::MutexLock lock(&mutex_);
    outgoing_.clear();
    outgoing_.push_back(std::move(hello));
  }
  const absl::Status status = Serve(&call, runner);
  absl::MutexLock lock(&mutex_);
  if (joined_ && !status.ok() && !IslandEnded(status)) {
    spdlog::warn("lost the leader: {}", status.ToString());
    metrics_->lost_leader->Increment();
  }
  joined_ = false;
  outgoing_.clear();
  return status;
}

absl::Status RendezvousClient::Serve(Call* call, RankRunner* runner) {
  absl::Duration heard = clock_->Monotonic();
  absl::Duration next_beat = heard + options_.beat_interval;
  for (;;) {
    const std::deque<JoinResponse> incoming = Exchange(call, *runner, &next_beat);
    if (!incoming.empty()) heard = clock_->Monotonic();
    for (const JoinResponse& message : incoming) runner->Handle(message);
    if (StopDue(call, runner)) return HowItEnded();
    {
      absl::MutexLock lock(&mutex_);
      if (call->exhausted()) return call->final_status();
    }
    const absl::Duration silence = clock_->Monotonic() - heard;
    if (silence > options_.silence_timeout) {
      return absl::UnavailableError(fmt::format("the leader was silent for {:.1f} s", absl::ToDoubleSeconds(silence)));
    }
  }
}

std::deque<JoinResponse> RendezvousClient::Exchange(Call* call, const RankRunner& runner, absl::Duration* next_beat) {
  // Before the lock: reports of the runner take both in the other order.
  const std::optional<RankRunner::OverdueAttempt> overdue = runner.FindOverdue();
  absl::MutexLock lock(&mutex_);
  const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return call->Wakes() || (call->writable() && !outgoing_.empty()) || leave_due_;
  };
  clock_->AwaitUntil(&mutex_, absl::Condition(&due), *next_beat);
  if (const absl::Duration now = clock_->Monotonic(); now >= *next_beat) {
    SendBeat(overdue);
    *next_beat = now + options_.beat_interval;
  }
  if (call->writable() && !outgoing_.empty()) {
    call->Write(std::move(outgoing_.front()));
    outgoing_.pop_front();
  }
  std::deque<JoinResponse> incoming = call->TakeIncoming();
  for (const JoinResponse& message : incoming) {
    if (message.has_welcome()) {
      joined_ = true;
      spdlog::info("joined the leader at {} as rank {}", options_.leader, options_.rank);
    } else if (message.has_shutdown()) {
      shut_down_ = message.shutdown();
      spdlog::info("the leader ends the island: {}", message.shutdown().reason());
    }
  }
  return incoming;
}

void RendezvousClient::SendBeat(const std::optional<RankRunner::OverdueAttempt>& overdue) {
  if (!joined_) return;
  JoinRequest beat;
  beat.mutable_beat()->set_sequence(++sequence_);
  if (overdue) {
    beat.mutable_beat()->mutable_overdue()->set_attempt(overdue->attempt);
    beat.mutable_beat()->mutable_overdue()->set_waiting(overdue->overdue.waiting);
    beat.mutable_beat()->mutable_overdue()->set_what(overdue->overdue.what);
  }
  outgoing_.push_back(std::move(beat));
}

// Asks the leader, then lets the attempt end, for a while.
bool RendezvousClient::StopDue(Call* call, RankRunner* runner) {
  absl::MutexLock lock(&mutex_);
  if (shut_down_.has_value()) return true;
  if (!stopping_) return false;
  if (leave_due_) {
    leave_due_ = false;
    JoinRequest message;
    auto* leave = message.mutable_leave();
    leave->set_reason(stop_.reason);
    if (stop_.deadline < absl::InfiniteDuration()) {
      *leave->mutable_left() = wire::ToProto(std::max(stop_.deadline - clock_->Monotonic(), absl::ZeroDuration()));
    }
    outgoing_.push_back(std::move(message));
  }
  if (clock_->Monotonic() > stop_.deadline) return true;
  // The order matters: an idle runner sends no further reports.
  if (runner->busy() || !outgoing_.empty() || !call->writable()) return false;
  // A cancelled call may take its last messages with it: the leader reads to the end and then ends the call.
  call->EndWrites();
  clock_->AwaitUntil(&mutex_, absl::Condition(call, &Call::done), clock_->Monotonic() + options_.silence_timeout);
  return true;
}

absl::Status RendezvousClient::HowItEnded() {
  absl::MutexLock lock(&mutex_);
  if (stopping_ || !shut_down_.has_value() || !shut_down_->failed()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kAborted, "ISLAND_ENDED",
                   fmt::format("the leader ends the island: {}", shut_down_->reason()));
}

}  // namespace atl::worker
