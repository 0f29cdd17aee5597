#include "worker/transport/nccl/nccl_lanes.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/failures.h"
#include "worker/transport/handshake.h"
#include "worker/transport/operation.h"

namespace atl::transport {
namespace {

constexpr auto kSettleInterval = std::chrono::microseconds(50);
constexpr auto kWatchInterval = std::chrono::milliseconds(20);
constexpr absl::Duration kGoodbyePatience = absl::Seconds(2);
// The current device's default stream, on which LibTorch computes.
constexpr NcclApi::Stream kCompute = nullptr;

absl::Duration Now() {
  return Clock::Real()->Monotonic();
}

absl::Status NcclError(int32_t rank, const std::string& error) {
  return MakeError(absl::StatusCode::kUnavailable, "TRANSPORT_NCCL", fmt::format("rank {}: {}", rank, error));
}

}  // namespace

NcclLanes::NcclLanes(NcclApi* api, int device, int32_t rank, int32_t rank_count)
    : api_(api), device_(device), rank_(rank), rank_count_(rank_count), watch_(&NcclLanes::Watch, this) {
  pthread_setname_np(watch_.native_handle(), fmt::format("nccl-{}", rank).c_str());
}

NcclLanes::~NcclLanes() {
  {
    Lock lock(mutex_);
    (void)api_->UseDevice(device_);
    const absl::Duration deadline = Now() + kGoodbyePatience;
    for (Channel* channel : AllChannels()) {
      if (failure_.ok() && channel->stream != nullptr) (void)Drain(channel->stream, deadline, lock);
    }
    if (failure_.ok()) SayGoodbye();
    FailLocked(Closed(rank_));
  }
  watch_.join();
}

std::vector<NcclLanes::Channel*> NcclLanes::AllChannels() {
  std::vector<Channel*> all;
  for (Channel& channel : channels_) all.push_back(&channel);
  all.push_back(&world_);
  return all;
}

void NcclLanes::SayGoodbye() {
  for (Channel* channel : AllChannels()) {
    if (channel->comm != nullptr) (void)api_->Finalize(channel->comm);
  }
  const absl::Duration deadline = Now() + kGoodbyePatience;
  for (Channel* channel : AllChannels()) {
    if (channel->comm == nullptr) continue;
    NcclResult state = api_->AsyncError(channel->comm);
    while (state.state == NcclResult::State::kInProgress && Now() < deadline) {
      std::this_thread::sleep_for(kSettleInterval);
      state = api_->AsyncError(channel->comm);
    }
    if (state.state != NcclResult::State::kDone) continue;  // TakeDown aborts it
    api_->Destroy(channel->comm);
    channel->comm = nullptr;
  }
}

absl::Status NcclLanes::Pause(const char* what, absl::Duration deadline, Lock& lock) {
  if (!failure_.ok()) return failure_;
  if (Now() >= deadline) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "TRANSPORT_TIMEOUT",
                     fmt::format("rank {}: {} did not end in time", rank_, what));
  }
  changed_.wait_for(lock, kSettleInterval);
  return failure_;
}

absl::Status NcclLanes::Settle(NcclApi::Comm comm, NcclResult begun, absl::Duration deadline, Lock& lock) {
  while (begun.state == NcclResult::State::kInProgress) {
    ATOLL_RETURN_IF_ERROR(Pause("an NCCL call", deadline, lock));
    begun = api_->AsyncError(comm);
  }
  return begun.state == NcclResult::State::kDone ? absl::OkStatus() : NcclError(rank_, begun.error);
}

absl::Status NcclLanes::Drain(NcclApi::Stream stream, absl::Duration deadline, Lock& lock) {
  ATOLL_ASSIGN_OR_RETURN(const NcclApi::Event event, api_->RecordEvent(stream));
  const absl::Cleanup destroy = [&] { api_->DestroyEvent(event); };
  while (true) {
    ATOLL_ASSIGN_OR_RETURN(const bool done, api_->EventDone(event));
    if (done) return absl::OkStatus();
    ATOLL_RETURN_IF_ERROR(Pause("the device's work", deadline, lock));
  }
}

absl::Status NcclLanes::Open(const std::string& unique_id, const LaneTable& lanes, absl::Duration timeout) {
  Lock lock(mutex_);
  const absl::Status status = OpenLocked(unique_id, lanes, Now() + timeout, lock);
  if (status.ok()) return status;
  FailLocked(status);
  return AwaitTakenDown(lock);
}

absl::Status NcclLanes::OpenLocked(const std::string& unique_id, const LaneTable& lanes, absl::Duration deadline,
                                   Lock& lock) {
  ATOLL_RETURN_IF_ERROR(failure_);
  ATOLL_RETURN_IF_ERROR(api_->UseDevice(device_));
  ATOLL_RETURN_IF_ERROR(OpenWorld(unique_id, deadline, lock));
  ATOLL_RETURN_IF_ERROR(CompareLanes(lanes, deadline, lock));
  channels_.resize(lanes.lanes().size());
  for (size_t number = 0; number < channels_.size(); ++number) {
    const Lane& lane = lanes.lanes()[number];
    // The collective lanes of other transports: here the world's communicator does their work.
    if (lane.chunk < 0) continue;
    ATOLL_RETURN_IF_ERROR(OpenLane(lane, channels_[number], deadline, lock));
  }
  open_ = true;
  return absl::OkStatus();
}

absl::Status NcclLanes::OpenWorld(const std::string& unique_id, absl::Duration deadline, Lock& lock) {
  ATOLL_ASSIGN_OR_RETURN(world_.stream, api_->CreateStream());
  ATOLL_ASSIGN_OR_RETURN(scratch_, api_->Allocate(1));
  const NcclResult begun = api_->InitRank(&world_.comm, rank_count_, unique_id, rank_);
  return Settle(world_.comm, begun, deadline, lock);
}

absl::Status NcclLanes::CompareLanes(const LaneTable& lanes, absl::Duration deadline, Lock& lock) {
  const Digest own = DigestOf(lanes);
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::byte> all, AllGatherLocked(own, deadline, lock));
  for (int32_t peer = 0; peer < rank_count_; ++peer) {
    if (std::memcmp(all.data() + peer * own.size(), own.data(), own.size()) != 0) return LanesDiffer(rank_, peer);
  }
  return absl::OkStatus();
}

absl::Status NcclLanes::OpenLane(const Lane& lane, Channel& channel, absl::Duration deadline, Lock& lock) {
  const bool member = lane.from == rank_ || lane.to == rank_;
  // The sender is rank 0 of the lane's communicator, the receiver rank 1.
  const NcclResult begun = api_->Split(world_.comm, member, lane.from == rank_ ? 0 : 1, &channel.comm);
  ATOLL_RETURN_IF_ERROR(Settle(world_.comm, begun, deadline, lock));
  if (!member) return absl::OkStatus();
  ATOLL_RETURN_IF_ERROR(Settle(channel.comm, api_->AsyncError(channel.comm), deadline, lock));
  ATOLL_ASSIGN_OR_RETURN(channel.stream, api_->CreateStream());
  return WarmUp(lane, channel, deadline, lock);
}

// NCCL connects two ranks at their first message, and the sender's call then waits for the receiver's. All ranks open
// the lanes in the same order, so that they do not wait in a circle.
absl::Status NcclLanes::WarmUp(const Lane& lane, Channel& channel, absl::Duration deadline, Lock& lock) {
  const NcclResult begun = lane.from == rank_ ? api_->Send(scratch_, 1, 1, channel.comm, channel.stream)
                                              : api_->Receive(scratch_, 1, 0, channel.comm, channel.stream);
  ATOLL_RETURN_IF_ERROR(Settle(channel.comm, begun, deadline, lock));
  return Drain(channel.stream, deadline, lock);
}

absl::StatusOr<std::vector<std::byte>> NcclLanes::AllGather(std::span<const std::byte> own, absl::Duration timeout) {
  Lock lock(mutex_);
  ATOLL_RETURN_IF_ERROR(failure_);
  auto all = AllGatherLocked(own, Now() + timeout, lock);
  if (all.ok()) return all;
  FailLocked(all.status());
  return AwaitTakenDown(lock);
}

absl::StatusOr<std::vector<std::byte>> NcclLanes::AllGatherLocked(std::span<const std::byte> own,
                                                                  absl::Duration deadline, Lock& lock) {
  std::vector<std::byte> all(own.size() * rank_count_);
  if (own.empty()) return all;
  ATOLL_ASSIGN_OR_RETURN(void* const device_bytes, api_->Allocate(own.size() + all.size()));
  const absl::Cleanup free = [&] { api_->Free(device_bytes); };
  const absl::Status status = GatherThrough(device_bytes, own, all, deadline, lock);
  if (status.ok()) return all;
  // The stream may still hold a kernel that uses the memory, and to free it would wait for that kernel.
  FailLocked(status);
  return AwaitTakenDown(lock);
}

absl::Status NcclLanes::GatherThrough(void* device_bytes, std::span<const std::byte> own, std::span<std::byte> all,
                                      absl::Duration deadline, Lock& lock) {
  auto* const received = static_cast<std::byte*>(device_bytes) + own.size();
  ATOLL_RETURN_IF_ERROR(api_->UseDevice(device_));
  ATOLL_RETURN_IF_ERROR(api_->Copy(device_bytes, own.data(), own.size(), world_.stream));
  const NcclResult begun = api_->AllGather(device_bytes, received, own.size(), world_.comm, world_.stream);
  ATOLL_RETURN_IF_ERROR(Settle(world_.comm, begun, deadline, lock));
  // A copy to pageable memory blocks until the stream reaches it: wait for the peers before, where Abort can end it.
  ATOLL_RETURN_IF_ERROR(Drain(world_.stream, deadline, lock));
  ATOLL_RETURN_IF_ERROR(api_->Copy(all.data(), received, all.size(), world_.stream));
  return Drain(world_.stream, deadline, lock);
}

absl::StatusOr<std::shared_ptr<NcclLanes::Posted>> NcclLanes::Send(const Lane& lane, uint32_t number, const void* bytes,
                                                                   size_t size) {
  return Post(lane, number, Describe("send", lane, size), true, const_cast<void*>(bytes), size);
}

absl::StatusOr<std::shared_ptr<NcclLanes::Posted>> NcclLanes::Receive(const Lane& lane, uint32_t number, void* bytes,
                                                                      size_t size) {
  return Post(lane, number, Describe("receive", lane, size), false, bytes, size);
}

absl::StatusOr<std::shared_ptr<NcclLanes::Posted>> NcclLanes::Post(const Lane& lane, uint32_t number,
                                                                   std::string description, bool is_send, void* bytes,
                                                                   size_t size) {
  Lock lock(mutex_);
  ATOLL_RETURN_IF_ERROR(failure_);
  const Channel& channel = channels_[number];
  const auto post = [&]() -> absl::StatusOr<NcclApi::Event> {
    ATOLL_RETURN_IF_ERROR(api_->UseDevice(device_));
    // A send's bytes are made, and a receive's memory is given up, by what the compute stream holds now.
    ATOLL_ASSIGN_OR_RETURN(const NcclApi::Event ready, api_->RecordEvent(kCompute));
    const absl::Status ordered = api_->StreamWait(channel.stream, ready);
    api_->DestroyEvent(ready);
    ATOLL_RETURN_IF_ERROR(ordered);
    const NcclResult begun = is_send ? api_->Send(bytes, size, 1, channel.comm, channel.stream)
                                     : api_->Receive(bytes, size, 0, channel.comm, channel.stream);
    ATOLL_RETURN_IF_ERROR(Settle(channel.comm, begun, absl::InfiniteDuration(), lock));
    return api_->RecordEvent(channel.stream);
  };
  const absl::StatusOr<NcclApi::Event> event = post();
  if (!event.ok()) {
    FailLocked(event.status());
    return AwaitTakenDown(lock);
  }
  auto posted = std::make_shared<Posted>();
  posted->description = std::move(description);
  posted->event = *event;
  watched_.push_back(posted);
  return posted;
}

bool NcclLanes::Done(Posted& posted) {
  const Lock lock(mutex_);
  return posted.done || taken_down_;
}

absl::Status NcclLanes::Order(Posted& posted, absl::Duration timeout) {
  Lock lock(mutex_);
  if (!failure_.ok()) return AwaitTakenDown(lock);
  if (posted.done) return absl::OkStatus();
  absl::Status status = api_->UseDevice(device_);
  if (status.ok()) status = api_->StreamWait(kCompute, posted.event);
  if (!status.ok()) {
    FailLocked(status);
    return AwaitTakenDown(lock);
  }
  posted.deadline = Now() + timeout;
  return absl::OkStatus();
}

void NcclLanes::Abort(const absl::Status& reason) {
  const Lock lock(mutex_);
  FailLocked(reason.ok() ? AbortedWithoutReason(rank_) : reason);
}

absl::Status NcclLanes::failure() {
  const Lock lock(mutex_);
  return failure_;
}

void NcclLanes::FailLocked(const absl::Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  changed_.notify_all();
}

absl::Status NcclLanes::AwaitTakenDown(Lock& lock) {
  changed_.wait(lock, [this] { return taken_down_; });
  return failure_;
}

void NcclLanes::Watch() {
  Lock lock(mutex_);
  while (failure_.ok()) {
    changed_.wait_for(lock, kWatchInterval);
    if (failure_.ok()) Inspect();
  }
  TakeDown(lock);
}

void NcclLanes::Inspect() {
  if (!open_) return;  // a split may be writing its communicator
  for (const Channel* channel : AllChannels()) {
    if (channel->comm == nullptr) continue;
    const NcclResult state = api_->AsyncError(channel->comm);
    if (state.state == NcclResult::State::kFailed) return FailLocked(NcclError(rank_, state.error));
  }
  const absl::Duration now = Now();
  for (const auto& posted : watched_) {
    const absl::StatusOr<bool> done = api_->EventDone(posted->event);
    if (!done.ok()) return FailLocked(done.status());
    posted->done = *done;
    if (!*done && posted->deadline.has_value() && now >= *posted->deadline) {
      return FailLocked(MakeError(absl::StatusCode::kDeadlineExceeded, "TRANSPORT_TIMEOUT",
                                  fmt::format("rank {}: {} did not end in time", rank_, posted->description)));
    }
  }
  std::erase_if(watched_, [this](const std::shared_ptr<Posted>& posted) {
    if (posted->done) api_->DestroyEvent(posted->event);
    return posted->done;
  });
}

void NcclLanes::TakeDown(Lock& lock) {
  const Channel world = std::exchange(world_, {});
  const std::vector<Channel> channels = std::move(channels_);  // in the same place: splits under way write into it
  const std::vector<std::shared_ptr<Posted>> watched = std::exchange(watched_, {});
  void* const scratch = std::exchange(scratch_, nullptr);
  channels_.clear();
  // A broken device or network may block these calls, so the mutex is released for the other threads.
  lock.unlock();
  (void)api_->UseDevice(device_);
  // The world first: its abort ends splits under way.
  if (world.comm != nullptr) api_->Abort(world.comm);
  for (const Channel& channel : channels) {
    if (channel.comm != nullptr) api_->Abort(channel.comm);
  }
  for (const auto& posted : watched) api_->DestroyEvent(posted->event);
  for (const Channel& channel : channels) {
    if (channel.stream != nullptr) api_->DestroyStream(channel.stream);
  }
  if (world.stream != nullptr) api_->DestroyStream(world.stream);
  if (scratch != nullptr) api_->Free(scratch);
  lock.lock();
  taken_down_ = true;
  changed_.notify_all();
}

}  // namespace atl::transport
