// Simulates NCCL and CUDA. Ranks of one process exchange bytes through host memory, streams run at once, and the test
// decides which calls fail. Each thread has a current device, as with CUDA; a call on a stream, memory or communicator
// of another device fails the test. The destructor checks that all handles were returned.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "worker/transport/nccl/nccl_api.h"

namespace atl::transport {

// Thread-safe. One object serves all ranks of a test.
class FakeNcclApi final : public NcclApi {
 public:
  ~FakeNcclApi() override;

  // Settings and observations of the test.
  void set_device_count(int count) { device_count_ = count; }
  void FailCommunicators(const std::string& error);
  // Returns the devices that communicators were made on, by rank of their world.
  std::map<int, int> devices() const;
  // While `held`, Abort does not return.
  void HoldAborts(bool held);
  int initialised() const;
  int aborted() const;
  int aborts_begun() const;

  absl::StatusOr<int> DeviceCount() override;
  absl::Status UseDevice(int device) override;
  absl::StatusOr<std::string> UniqueId() override;
  NcclResult InitRank(Comm* comm, int ranks, const std::string& unique_id, int rank) override;
  NcclResult Split(Comm parent, bool member, int key, Comm* comm) override;
  NcclResult AsyncError(Comm comm) override;
  NcclResult Finalize(Comm comm) override { return {}; }
  void Destroy(Comm comm) override { Release(comm, false); }
  void Abort(Comm comm) override;
  NcclResult Send(const void* bytes, size_t size, int peer, Comm comm, Stream stream) override;
  NcclResult Receive(void* bytes, size_t size, int peer, Comm comm, Stream stream) override;
  NcclResult AllGather(const void* sent, void* received, size_t size, Comm comm, Stream stream) override;
  absl::StatusOr<Stream> CreateStream() override;
  void DestroyStream(Stream stream) override;
  absl::StatusOr<Event> RecordEvent(Stream stream) override;
  absl::StatusOr<bool> EventDone(Event event) override;
  void DestroyEvent(Event event) override;
  absl::Status StreamWait(Stream stream, Event event) override;
  absl::StatusOr<void*> Allocate(size_t size) override;
  void Free(void* bytes) override;
  absl::Status Copy(void* to, const void* from, size_t size, Stream stream) override;

 private:
  // The shared state of the ranks of one communicator.
  struct Group {
    size_t ranks = 0;
    std::set<int> joined;
    std::deque<std::vector<std::byte>> messages;                  // of a two-rank lane, first to second
    std::map<int, std::vector<std::vector<std::byte>>> gathered;  // by rank, one per round
    std::map<int, std::shared_ptr<Group>> splits;                 // by round
  };
  struct Member {
    std::shared_ptr<Group> group;
    int rank = 0;
    int device = 0;
    int split_round = 0;
    size_t gather_round = 0;
    std::shared_ptr<Group> splitting;  // not complete yet
  };
  // An operation on a stream that waits for a peer.
  struct Operation {
    Member* member = nullptr;
    std::byte* to = nullptr;
    size_t size = 0;
    size_t round = 0;
    bool gather = false;
    bool done = false;
  };
  using Operations = std::vector<std::shared_ptr<Operation>>;

  struct Queue {
    int device = 0;
    Operations operations;
  };

  void Release(Comm comm, bool abort);
  bool TryEnd(Operation& operation);

  int device_count_ = 1;
  mutable std::mutex mutex_;
  std::string error_;
  int initialised_ = 0;
  int aborted_ = 0;
  int aborts_begun_ = 0;
  bool aborts_held_ = false;
  std::condition_variable aborts_released_;
  std::map<std::string, std::shared_ptr<Group>> worlds_;
  std::set<Member*> members_;
  std::map<int, int> devices_;
  std::map<Stream, Queue> streams_;
  std::map<Event, Queue> events_;
  std::set<void*> allocations_;
};

}  // namespace atl::transport
