// The communicators and streams of one rank, and the thread that watches them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/lane_table.h"
#include "worker/transport/nccl/nccl_api.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Thread-safe: one mutex guards the libraries' calls and the members; no call under it blocks on a peer. Any failure is
// final. The watch thread then takes all handles out and aborts every communicator, without the mutex. Only after that
// do waits return the failure, so that no kernel touches a buffer whose wait has ended.
class NcclLanes {
 public:
  // One operation on a lane. Its event is null until it is recorded.
  struct Posted {
    std::string description;
    NcclApi::Event event = nullptr;
    std::optional<absl::Duration> deadline;  // of Clock::Monotonic, set by the first wait
    bool done = false;
  };

  NcclLanes(NcclApi* api, int device, int32_t rank, int32_t rank_count);
  // Flushes finished sends for at most two seconds, unless aborted.
  ~NcclLanes();

  // Makes the world's communicator, checks that all ranks have the same lanes, makes and warms up each lane.
  absl::Status Open(const std::string& unique_id, const LaneTable& lanes, absl::Duration timeout);

  absl::StatusOr<std::shared_ptr<Posted>> Send(const Lane& lane, uint32_t number, const void* bytes, size_t size);
  absl::StatusOr<std::shared_ptr<Posted>> Receive(const Lane& lane, uint32_t number, void* bytes, size_t size);
  bool Done(Posted& posted);
  // Orders the compute stream behind `posted` and watches it until `timeout` has passed.
  absl::Status Order(Posted& posted, absl::Duration timeout);

  // Returns every rank's bytes, by rank. Host memory in and out. Blocks.
  absl::StatusOr<std::vector<std::byte>> AllGather(std::span<const std::byte> own, absl::Duration timeout);

  // Returns at once.
  void Abort(const absl::Status& reason);
  absl::Status failure();

 private:
  struct Channel {
    NcclApi::Comm comm = nullptr;
    NcclApi::Stream stream = nullptr;
  };
  using Lock = std::unique_lock<std::mutex>;

  absl::Status OpenLocked(const std::string& unique_id, const LaneTable& lanes, absl::Duration deadline, Lock& lock);
  absl::Status OpenWorld(const std::string& unique_id, absl::Duration deadline, Lock& lock);
  absl::Status CompareLanes(const LaneTable& lanes, absl::Duration deadline, Lock& lock);
  absl::Status OpenLane(const Lane& lane, Channel& channel, absl::Duration deadline, Lock& lock);
  absl::Status WarmUp(const Lane& lane, Channel& channel, absl::Duration deadline, Lock& lock);
  absl::StatusOr<std::vector<std::byte>> AllGatherLocked(std::span<const std::byte> own, absl::Duration deadline,
                                                         Lock& lock);
  absl::Status GatherThrough(void* device_bytes, std::span<const std::byte> own, std::span<std::byte> all,
                             absl::Duration deadline, Lock& lock);
  absl::StatusOr<std::shared_ptr<Posted>> Post(const Lane& lane, uint32_t number, std::string description, bool is_send,
                                               void* bytes, size_t size);

  // Waits until `comm` has finished the call that returned `begun`; releases the lock in between.
  absl::Status Settle(NcclApi::Comm comm, NcclResult begun, absl::Duration deadline, Lock& lock);
  // Waits likewise until all work on `stream` has ended.
  absl::Status Drain(NcclApi::Stream stream, absl::Duration deadline, Lock& lock);
  // Sleeps a moment; returns the failure, or DEADLINE_EXCEEDED after `deadline`.
  absl::Status Pause(const char* what, absl::Duration deadline, Lock& lock);

  void Watch();
  void Inspect();  // needs mutex_
  // Releases `lock` while it calls the libraries.
  void TakeDown(Lock& lock);
  void SayGoodbye();  // needs mutex_
  std::vector<Channel*> AllChannels();
  void FailLocked(const absl::Status& reason);
  absl::Status AwaitTakenDown(Lock& lock);

  NcclApi* const api_;
  const int device_;
  const int32_t rank_;
  const int32_t rank_count_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Channel world_;
  std::vector<Channel> channels_;  // by lane number; null if this rank is not an end; NCCL keeps pointers into it
  void* scratch_ = nullptr;        // a byte of device memory, for warming up
  std::vector<std::shared_ptr<Posted>> watched_;
  bool open_ = false;
  absl::Status failure_;
  bool taken_down_ = false;

  std::thread watch_;
};

}  // namespace atl::transport
