#include "worker/transport/nccl/fake_nccl_api.h"

#include <algorithm>
#include <cstring>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "gtest/gtest.h"

namespace atl::transport {
namespace {
constexpr NcclResult::State kInProgress = NcclResult::State::kInProgress;

thread_local int current_device = 0;

void ExpectCurrent(int device, const char* call) {
  EXPECT_EQ(current_device, device) << call << " on a thread whose current device is another";
}
}  // namespace

FakeNcclApi::~FakeNcclApi() {
  EXPECT_TRUE(members_.empty()) << "communicators were left";
  EXPECT_TRUE(streams_.empty()) << "streams were left";
  EXPECT_TRUE(events_.empty()) << "events were left";
  EXPECT_TRUE(allocations_.empty()) << "device memory was left";
}

void FakeNcclApi::FailCommunicators(const std::string& error) {
  const std::lock_guard lock(mutex_);
  error_ = error;
}

void FakeNcclApi::HoldAborts(bool held) {
  const std::lock_guard lock(mutex_);
  aborts_held_ = held;
  aborts_released_.notify_all();
}

int FakeNcclApi::initialised() const {
  const std::lock_guard lock(mutex_);
  return initialised_;
}

int FakeNcclApi::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

int FakeNcclApi::aborts_begun() const {
  const std::lock_guard lock(mutex_);
  return aborts_begun_;
}

absl::StatusOr<int> FakeNcclApi::DeviceCount() {
  if (device_count_ > 0) return device_count_;
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE", "expected a CUDA device, found none");
}

absl::Status FakeNcclApi::UseDevice(int device) {
  current_device = device;
  return absl::OkStatus();
}

std::map<int, int> FakeNcclApi::devices() const {
  const std::lock_guard lock(mutex_);
  return devices_;
}

absl::StatusOr<std::string> FakeNcclApi::UniqueId() {
  const std::lock_guard lock(mutex_);
  std::string id = fmt::format("world {}", worlds_.size());
  worlds_[id] = std::make_shared<Group>();
  return id;
}

NcclResult FakeNcclApi::InitRank(Comm* comm, int ranks, const std::string& unique_id, int rank) {
  const std::lock_guard lock(mutex_);
  ++initialised_;
  auto* member = new Member{.group = worlds_.at(unique_id), .rank = rank, .device = current_device};
  devices_[rank] = current_device;
  members_.insert(member);
  member->group->ranks = static_cast<size_t>(ranks);
  member->group->joined.insert(rank);
  *comm = member;
  return {.state = kInProgress};
}

NcclResult FakeNcclApi::Split(Comm parent, bool member, int key, Comm* comm) {
  const std::lock_guard lock(mutex_);
  auto& parent_member = *static_cast<Member*>(parent);
  auto& group = parent_member.group->splits[parent_member.split_round++];
  if (group == nullptr) group = std::make_shared<Group>(Group{.ranks = 2});
  if (!member) return {};
  ExpectCurrent(parent_member.device, "ncclCommSplit");
  auto* made = new Member{.group = group, .rank = key, .device = parent_member.device};
  members_.insert(made);
  group->joined.insert(key);
  parent_member.splitting = group;
  *comm = made;
  return {.state = kInProgress};
}

NcclResult FakeNcclApi::AsyncError(Comm comm) {
  const std::lock_guard lock(mutex_);
  if (!error_.empty()) return {.state = NcclResult::State::kFailed, .error = error_};
  const auto& member = *static_cast<Member*>(comm);
  const auto complete = [](const Group& group) { return group.joined.size() == group.ranks; };
  const bool done = complete(*member.group) && (member.splitting == nullptr || complete(*member.splitting));
  return {.state = done ? NcclResult::State::kDone : kInProgress};
}

void FakeNcclApi::Abort(Comm comm) {
  {
    std::unique_lock lock(mutex_);
    ++aborts_begun_;
    aborts_released_.wait(lock, [this] { return !aborts_held_; });
  }
  Release(comm, true);
}

void FakeNcclApi::Release(Comm comm, bool abort) {
  const std::lock_guard lock(mutex_);
  auto* member = static_cast<Member*>(comm);
  EXPECT_EQ(members_.erase(member), 1u) << "a communicator was released twice";
  aborted_ += abort ? 1 : 0;
  for (auto* table : {&streams_, &events_}) {
    for (auto& [key, queue] : *table) {
      for (auto& operation : queue.operations) {
        if (operation->member == member) operation->done = true;
      }
    }
  }
  delete member;
}

NcclResult FakeNcclApi::Send(const void* bytes, size_t size, int peer, Comm comm, Stream stream) {
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(peer, 1);
  ExpectCurrent(static_cast<Member*>(comm)->device, "ncclSend");
  ExpectCurrent(streams_.at(stream).device, "ncclSend");
  const auto* at = static_cast<const std::byte*>(bytes);
  static_cast<Member*>(comm)->group->messages.emplace_back(at, at + size);
  return {};
}

NcclResult FakeNcclApi::Receive(void* bytes, size_t size, int peer, Comm comm, Stream stream) {
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(peer, 0);
  ExpectCurrent(static_cast<Member*>(comm)->device, "ncclRecv");
  ExpectCurrent(streams_.at(stream).device, "ncclRecv");
  streams_.at(stream).operations.push_back(std::make_shared<Operation>(
      Operation{.member = static_cast<Member*>(comm), .to = static_cast<std::byte*>(bytes), .size = size}));
  return {};
}

NcclResult FakeNcclApi::AllGather(const void* sent, void* received, size_t size, Comm comm, Stream stream) {
  const std::lock_guard lock(mutex_);
  auto* member = static_cast<Member*>(comm);
  const auto* at = static_cast<const std::byte*>(sent);
  member->group->gathered[member->rank].emplace_back(at, at + size);
  ExpectCurrent(member->device, "ncclAllGather");
  ExpectCurrent(streams_.at(stream).device, "ncclAllGather");
  streams_.at(stream).operations.push_back(
      std::make_shared<Operation>(Operation{.member = member,
                                            .to = static_cast<std::byte*>(received),
                                            .size = size,
                                            .round = member->gather_round++,
                                            .gather = true}));
  return {};
}

bool FakeNcclApi::TryEnd(Operation& operation) {
  if (operation.done) return true;
  Group& group = *operation.member->group;
  if (!operation.gather) {
    if (group.messages.empty()) return false;
    std::memcpy(operation.to, group.messages.front().data(), std::min(operation.size, group.messages.front().size()));
    group.messages.pop_front();
  } else {
    for (size_t rank = 0; rank < group.ranks; ++rank) {
      if (group.gathered[static_cast<int>(rank)].size() <= operation.round) return false;
    }
    for (size_t rank = 0; rank < group.ranks; ++rank) {
      std::memcpy(operation.to + rank * operation.size, group.gathered[static_cast<int>(rank)][operation.round].data(),
                  operation.size);
    }
  }
  return operation.done = true;
}

absl::StatusOr<NcclApi::Stream> FakeNcclApi::CreateStream() {
  const std::lock_guard lock(mutex_);
  Stream stream = new char;
  streams_[stream].device = current_device;
  return stream;
}

void FakeNcclApi::DestroyStream(Stream stream) {
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(streams_.erase(stream), 1u) << "a stream was destroyed twice";
  delete static_cast<char*>(stream);
}

absl::StatusOr<NcclApi::Event> FakeNcclApi::RecordEvent(Stream stream) {
  const std::lock_guard lock(mutex_);
  Event event = new char;
  // An event belongs to the current device, and so does the default stream.
  events_[event].device = current_device;
  if (stream != nullptr) events_[event] = streams_.at(stream);
  ExpectCurrent(events_[event].device, "cudaEventRecord");
  return event;
}

absl::StatusOr<bool> FakeNcclApi::EventDone(Event event) {
  const std::lock_guard lock(mutex_);
  for (auto& operation : events_.at(event).operations) {
    if (!TryEnd(*operation)) return false;
  }
  return true;
}

void FakeNcclApi::DestroyEvent(Event event) {
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(events_.erase(event), 1u) << "an event was destroyed twice";
  delete static_cast<char*>(event);
}

absl::Status FakeNcclApi::StreamWait(Stream stream, Event event) {
  const std::lock_guard lock(mutex_);
  ExpectCurrent(events_.at(event).device, "cudaStreamWaitEvent");
  if (stream != nullptr) ExpectCurrent(streams_.at(stream).device, "cudaStreamWaitEvent");
  return absl::OkStatus();
}

absl::StatusOr<void*> FakeNcclApi::Allocate(size_t size) {
  const std::lock_guard lock(mutex_);
  return *allocations_.insert(::operator new(size)).first;
}

void FakeNcclApi::Free(void* bytes) {
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(allocations_.erase(bytes), 1u) << "device memory was freed twice";
  ::operator delete(bytes);
}

absl::Status FakeNcclApi::Copy(void* to, const void* from, size_t size, Stream stream) {
  std::memcpy(to, from, size);
  return absl::OkStatus();
}

}  // namespace atl::transport
