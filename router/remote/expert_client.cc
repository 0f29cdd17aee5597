#include "router/remote/expert_client.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "grpcpp/generic/generic_stub.h"
#include "inference/hosted_networks.h"
#include "router/remote/expert_wire.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

namespace expert_pb = atlpb::expert::v1;
using Frame = grpc::ByteBuffer;
using Stub = expert_pb::ExpertService::Stub;

// A server that takes longer to say what it hosts is out of reach.
constexpr absl::Duration kListTimeout = absl::Seconds(3);
// Batches under way per batch that the server evaluates: the next one is there when an answer leaves.
constexpr int32_t kBatchesPerSlot = 2;

constexpr char kDenoiseMethod[] = "/atoll.expert.v1.ExpertService/Denoise";

std::shared_ptr<const std::vector<HostedNetwork>> Nothing() {
  return std::make_shared<const std::vector<HostedNetwork>>();
}

absl::Status Stopping() {
  return absl::UnavailableError("the router lets go of it");
}

}  // namespace

// One call of Denoise. Its state is guarded by the lane's mutex; the lane outlives it.
class RemoteLane::Stream final : public grpc::ClientBidiReactor<Frame, Frame> {
 public:
  Stream(RemoteLane* lane, const std::shared_ptr<grpc::Channel>& channel) : lane_(lane), stub_(channel) {
    // The stream lives as long as the server answers the lists beside it: they end it, not a deadline.
    stub_.PrepareBidiStreamingCall(&context_, kDenoiseMethod, grpc::StubOptions(), this);
    AddHold();  // writes are started outside reactions
    StartRead(&incoming_);
    StartCall();
  }

  ~Stream() override {
    context_.TryCancel();
    EndWrites(absl::OkStatus());
    absl::MutexLock lock(&lane_->mutex_);
    lane_->mutex_.Await(absl::Condition(&done_));
  }

  // Queues a batch, or with number 0 a cancelling, which goes first.
  void Queue(int64_t number, Frame bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_->mutex_) {
    if (number == 0) {
      outgoing_.emplace_front(number, std::move(bytes));
    } else {
      outgoing_.emplace_back(number, std::move(bytes));
    }
  }
  bool Unqueue(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_->mutex_) {
    return std::erase_if(outgoing_, [&](const auto& entry) { return entry.first == number; }) > 0;
  }
  // Takes the next message to write, if one can be written now: then call Write, without the lock. Until that write is
  // over the stream stays.
  bool TakeWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_->mutex_) {
    if (writing_ || ended_ || outgoing_.empty()) return false;
    writing_ = true;
    current_ = std::move(outgoing_.front().second);
    outgoing_.pop_front();
    return true;
  }
  void Write() { StartWrite(&current_); }
  bool ended() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_->mutex_) { return ended_; }
  absl::Status why() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_->mutex_) {
    return why_.ok() ? absl::UnavailableError("the stream broke") : why_;
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return EndWrites(absl::OkStatus());
    absl::Status broken;
    lane_->OnAnswer(&incoming_, &broken);
    if (broken.ok()) return StartRead(&incoming_);
    context_.TryCancel();
    EndWrites(broken);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return EndWrites(absl::OkStatus(), /*write_over=*/true);
    bool write = false;
    {
      absl::MutexLock lock(&lane_->mutex_);
      writing_ = false;
      write = TakeWrite();
    }
    if (write) Write();
    MaybeRemoveHold();
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&lane_->mutex_);
    if (why_.ok()) why_ = status.ok() ? absl::UnavailableError("the server ended the stream") : rpc::FromGrpc(status);
    done_ = true;
  }
  // No write is started from now on.
  void EndWrites(const absl::Status& why, bool write_over = false) {
    {
      absl::MutexLock lock(&lane_->mutex_);
      ended_ = true;
      if (write_over) writing_ = false;
      outgoing_.clear();
      if (why_.ok()) why_ = why;
    }
    MaybeRemoveHold();
  }
  void MaybeRemoveHold() {
    {
      absl::MutexLock lock(&lane_->mutex_);
      if (!ended_ || writing_ || !held_) return;
      held_ = false;
    }
    RemoveHold();
  }

  RemoteLane* const lane_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  Frame incoming_;
  Frame current_;
  std::deque<std::pair<int64_t, Frame>> outgoing_ ABSL_GUARDED_BY(lane_->mutex_);
  bool writing_ ABSL_GUARDED_BY(lane_->mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(lane_->mutex_) = false;
  bool held_ ABSL_GUARDED_BY(lane_->mutex_) = true;
  bool done_ ABSL_GUARDED_BY(lane_->mutex_) = false;
  absl::Status why_ ABSL_GUARDED_BY(lane_->mutex_);
};

// One call of ListNetworks; its end wakes the lane's thread.
class RemoteLane::ListCall {
 public:
  ListCall(Stub* stub, absl::Duration timeout, absl::Mutex* mutex) : mutex_(mutex) {
    rpc::SetTimeout(&context_, timeout);
    stub->async()->ListNetworks(&context_, &request_, &response, [this](const grpc::Status& result) {
      absl::MutexLock lock(mutex_);
      status = rpc::FromGrpc(result);
      done = true;
    });
  }
  ~ListCall() {
    context_.TryCancel();
    absl::MutexLock lock(mutex_);
    mutex_->Await(absl::Condition(&done));
  }

  expert_pb::ListNetworksResponse response;  // once done
  absl::Status status;
  bool done = false;

 private:
  absl::Mutex* const mutex_;
  grpc::ClientContext context_;
  expert_pb::ListNetworksRequest request_;
};

RemoteLane::RemoteLane(RemoteLaneOptions options, Clock* clock)
    : options_(std::move(options)),
      clock_(clock),
      info_({.name = options_.name.empty() ? options_.address : options_.name,
             .remote = true,
             .max_batch_values = kMaxBatchValues}),
      hosted_(Nothing()) {
  thread_ = std::thread([this] { Run(); });
}

RemoteLane::~RemoteLane() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_ = nullptr;
  }
  thread_.join();
}

LaneInfo RemoteLane::info() const {
  absl::MutexLock lock(&mutex_);
  return info_;
}

std::shared_ptr<const std::vector<HostedNetwork>> RemoteLane::hosted() const {
  absl::MutexLock lock(&mutex_);
  return hosted_;
}

void RemoteLane::Watch(std::function<void()> changed) {
  absl::MutexLock lock(&mutex_);
  const auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !notifying_; };
  mutex_.Await(absl::Condition(&quiet));
  changed_ = std::move(changed);
}

void RemoteLane::NotifyChanged() {
  std::function<void()> changed;
  {
    absl::MutexLock lock(&mutex_);
    changed = changed_;
    notifying_ = changed != nullptr;
  }
  if (changed) changed();
  if (options_.on_hosting) options_.on_hosting();
  absl::MutexLock lock(&mutex_);
  notifying_ = false;
}

void RemoteLane::Start(std::shared_ptr<const Evaluation> evaluation, Done done) {
  const absl::Duration now = clock_->Monotonic();
  const int64_t number = last_number_.fetch_add(1) + 1;
  absl::StatusOr<Frame> bytes = EncodeRequest(number, evaluation, evaluation->deadline - now);
  if (!bytes.ok()) return done(bytes.status());
  absl::Status refused;
  Stream* to_write = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (stream_ == nullptr || stream_->ended()) {
      refused = MakeError(absl::StatusCode::kUnavailable, "EXPERT_SERVER_LOST",
                          fmt::format("expert server {} is out of reach", options_.address));
    } else if (FindHosted(*hosted_, evaluation->network) == nullptr) {
      refused = MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED",
                          fmt::format("expert server {} does not host {} with digest '{}'", options_.address,
                                      Describe(evaluation->network), evaluation->network.digest));
    } else {
      look_now_ |= evaluation->deadline < next_look_;
      stream_->Queue(number, *std::move(bytes));
      pending_.emplace(number, Pending{std::move(evaluation), std::move(done), now});
      if (stream_->TakeWrite()) to_write = stream_;
    }
  }
  if (!refused.ok()) return done(refused);
  if (to_write != nullptr) to_write->Write();
}

void RemoteLane::Cancel(int64_t evaluation) {
  Stream* to_write = nullptr;
  Done done;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = std::find_if(pending_.begin(), pending_.end(),
                                    [&](const auto& entry) { return entry.second.evaluation->id == evaluation; });
    if (found == pending_.end() || stream_ == nullptr) return;
    if (CancelOnStream(found->first)) {
      done = std::move(found->second.done);
      pending_.erase(found);
    } else if (stream_->TakeWrite()) {
      to_write = stream_;
    }
  }
  if (done) return done(absl::CancelledError("the batch was cancelled before it was sent"));
  if (to_write != nullptr) to_write->Write();
}

bool RemoteLane::CancelOnStream(int64_t number) {
  if (stream_->Unqueue(number)) return true;
  stream_->Queue(0, EncodeCancel(number));
  return false;
}

void RemoteLane::OnAnswer(Frame* bytes, absl::Status* broken) {
  absl::StatusOr<DenoiseAnswer> frame = DecodeAnswer(bytes);
  if (!frame.ok()) {
    *broken = frame.status();
    return;
  }
  Pending batch;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = pending_.find(frame->id);
    if (found == pending_.end()) return;  // it was overdue, and is answered
    batch = std::move(found->second);
    pending_.erase(found);
  }
  absl::StatusOr<EvaluationAnswer>& answer = frame->answer;
  if (!answer.ok()) return batch.done(WithContext(answer.status(), "expert server " + options_.address));
  // The time by which batches are cut is the server's word, but within what the batch took.
  const absl::Duration took = clock_->Monotonic() - batch.started;
  answer->compute_time = std::clamp(answer->compute_time, absl::ZeroDuration(), took);
  answer->queue_time = took - answer->compute_time;
  batch.done(std::move(answer));
}

void RemoteLane::Run() {
  Backoff backoff(options_.backoff);
  std::string last_reason;
  for (;;) {
    bool steady = false;
    const absl::Status why = Connect(&steady);
    if (steady) backoff.Reset();
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    if (const std::string reason(why.message()); steady || reason != last_reason) {
      spdlog::warn("expert server {} is out of reach: {}", options_.address, reason);
      last_reason = reason;
    }
    if (clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + backoff.Next())) return;
  }
}

absl::Status RemoteLane::Connect(bool* steady) {
  // A new channel: the old one would hold back for as long as it failed before.
  const std::shared_ptr<grpc::Channel> channel = rpc::MakeChannel(options_.address, options_.credentials);
  const std::unique_ptr<Stub> stub = expert_pb::ExpertService::NewStub(channel);
  ATOLL_ASSIGN_OR_RETURN(const expert_pb::ListNetworksResponse hosting, List(stub.get(), nullptr));
  Stream stream(this, channel);
  TakeHosting(hosting, &stream);
  spdlog::info("expert server {}: {} networks, {} batches side by side", options_.address, hosted()->size(),
               hosting.slots());
  const absl::Status why = Serve(&stream, stub.get(), steady);
  Disconnect(why);
  return why;
}

absl::Status RemoteLane::Serve(Stream* stream, Stub* stub, bool* steady) {
  for (;;) {
    const auto ended = [this, stream]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream->ended(); };
    AwaitBeside(absl::Condition(&ended), clock_->Monotonic() + options_.list_interval);
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return Stopping();
      if (stream->ended()) return stream->why();
    }
    ATOLL_ASSIGN_OR_RETURN(const expert_pb::ListNetworksResponse hosting, List(stub, stream));
    TakeHosting(hosting, stream);
    *steady = true;
  }
}

absl::StatusOr<expert_pb::ListNetworksResponse> RemoteLane::List(Stub* stub, Stream* stream) {
  ListCall call(stub, kListTimeout, &mutex_);
  const auto due = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return call.done || (stream != nullptr && stream->ended());
  };
  AwaitBeside(absl::Condition(&due), absl::InfiniteDuration());
  absl::MutexLock lock(&mutex_);
  if (!call.done) return stopping_ ? Stopping() : stream->why();
  ATOLL_RETURN_IF_ERROR(call.status);
  return std::move(call.response);
}

void RemoteLane::AwaitBeside(const absl::Condition& due, absl::Duration until) {
  for (;;) {
    std::vector<Pending> overdue;
    Stream* to_write = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      overdue = TakeOverdue(&to_write);
      if (overdue.empty() && to_write == nullptr) {
        const auto wakes = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || look_now_ || due.Eval(); };
        clock_->AwaitUntil(&mutex_, absl::Condition(&wakes), std::min(until, next_look_));
        if (stopping_ || due.Eval() || clock_->Monotonic() >= until) return;
      }
    }
    for (const Pending& batch : overdue) {
      batch.done(MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                           fmt::format("expert server {} did not answer in time", options_.address)));
    }
    if (to_write != nullptr) to_write->Write();
  }
}

std::vector<RemoteLane::Pending> RemoteLane::TakeOverdue(Stream** to_write) {
  const absl::Duration now = clock_->Monotonic();
  std::vector<Pending> overdue;
  look_now_ = false;
  next_look_ = absl::InfiniteDuration();
  for (auto batch = pending_.begin(); batch != pending_.end();) {
    if (batch->second.evaluation->deadline > now) {
      next_look_ = std::min(next_look_, batch->second.evaluation->deadline);
      ++batch;
      continue;
    }
    if (stream_ != nullptr) CancelOnStream(batch->first);
    overdue.push_back(std::move(batch->second));
    batch = pending_.erase(batch);
  }
  if (stream_ != nullptr && stream_->TakeWrite()) *to_write = stream_;
  return overdue;
}

void RemoteLane::TakeHosting(const expert_pb::ListNetworksResponse& hosting, Stream* stream) {
  std::vector<HostedNetwork> ready = ReadyNetworks(hosting);
  bool changed = false;
  {
    absl::MutexLock lock(&mutex_);
    LaneInfo info = info_;
    info.slots = std::max(1, hosting.slots()) * kBatchesPerSlot;
    info.fingerprint = hosting.fingerprint();
    changed = stream_ == nullptr || info != info_ || *hosted_ != ready;
    stream_ = stream;
    info_ = std::move(info);
    if (changed) hosted_ = std::make_shared<const std::vector<HostedNetwork>>(std::move(ready));
  }
  if (changed) NotifyChanged();
}

void RemoteLane::Disconnect(const absl::Status& why) {
  std::map<int64_t, Pending> lost;
  {
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    hosted_ = Nothing();
    lost.swap(pending_);
  }
  for (const auto& [number, batch] : lost) {
    batch.done(MakeError(absl::StatusCode::kUnavailable, "EXPERT_SERVER_LOST",
                         fmt::format("expert server {} was lost: {}", options_.address, std::string(why.message()))));
  }
  NotifyChanged();
}

}  // namespace atl::router
