// The few calls of NCCL and of CUDA's runtime that the transport makes, so that its error paths run without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::transport {

// What a call on a communicator that does not block came to.
struct NcclResult {
  enum class State : uint8_t { kDone, kInProgress, kFailed };
  State state = State::kDone;
  std::string error;  // of kFailed
};

// Thread-safe as NCCL is: calls on one communicator or stream come from one thread at a time, but Abort and AsyncError
// may come from another. Handles are the libraries' own, as opaque pointers.
class NcclApi {
 public:
  using Comm = void*;
  using Stream = void*;
  using Event = void*;

  virtual ~NcclApi() = default;

  // FAILED_PRECONDITION DEVICE_UNAVAILABLE when there is none, with CUDA's reason.
  virtual absl::StatusOr<int> DeviceCount() = 0;
  // For the calling thread.
  virtual absl::Status UseDevice(int device) = 0;

  virtual absl::StatusOr<std::string> UniqueId() = 0;
  // Communicators do not block: kInProgress is settled by asking AsyncError until it says otherwise.
  virtual NcclResult InitRank(Comm* comm, int ranks, const std::string& unique_id, int rank) = 0;
  // A communicator of those ranks of `parent` that are members, ordered by `key`. Every rank of `parent` calls it;
  // `*comm` stays null for the others.
  virtual NcclResult Split(Comm parent, bool member, int key, Comm* comm) = 0;
  virtual NcclResult AsyncError(Comm comm) = 0;
  // Lets what was sent leave; collective over the communicator's ranks in that it ends when all have called it.
  virtual NcclResult Finalize(Comm comm) = 0;
  virtual void Destroy(Comm comm) = 0;
  // Ends the communicator and every kernel of it, whatever the peers do.
  virtual void Abort(Comm comm) = 0;

  virtual NcclResult Send(const void* bytes, size_t size, int peer, Comm comm, Stream stream) = 0;
  virtual NcclResult Receive(void* bytes, size_t size, int peer, Comm comm, Stream stream) = 0;
  // `received` holds `size` bytes per rank.
  virtual NcclResult AllGather(const void* sent, void* received, size_t size, Comm comm, Stream stream) = 0;

  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual void DestroyStream(Stream stream) = 0;
  // An event that ends when all that was put on `stream` so far has ended.
  virtual absl::StatusOr<Event> RecordEvent(Stream stream) = 0;
  virtual absl::StatusOr<bool> EventDone(Event event) = 0;
  virtual void DestroyEvent(Event event) = 0;
  // What is put on `stream` from now on waits for `event`.
  virtual absl::Status StreamWait(Stream stream, Event event) = 0;

  virtual absl::StatusOr<void*> Allocate(size_t size) = 0;
  virtual void Free(void* bytes) = 0;
  // Between host and device either way, in the order of `stream`.
  virtual absl::Status Copy(void* to, const void* from, size_t size, Stream stream) = 0;
};

// The libraries themselves, in a build with CUDA. Never destroyed.
NcclApi* RealNcclApi();

}  // namespace atl::transport
