// The few calls of NCCL and of CUDA's runtime that the transport makes, as an interface, so that its error paths can
// run without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::transport {

// The result of a call on a non-blocking communicator.
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

  // Returns FAILED_PRECONDITION DEVICE_UNAVAILABLE, with CUDA's reason, if there is none.
  virtual absl::StatusOr<int> DeviceCount() = 0;
  // Sets the device of the calling thread.
  virtual absl::Status UseDevice(int device) = 0;

  virtual absl::StatusOr<std::string> UniqueId() = 0;
  // Communicators do not block: after kInProgress, poll AsyncError until it returns another state.
  virtual NcclResult InitRank(Comm* comm, int ranks, const std::string& unique_id, int rank) = 0;
  // Makes a communicator of the `member` ranks of `parent`, ordered by `key`. Every rank of `parent` calls it; `*comm`
  // stays null for the others.
  virtual NcclResult Split(Comm parent, bool member, int key, Comm* comm) = 0;
  virtual NcclResult AsyncError(Comm comm) = 0;
  // Flushes all sends. Collective: ends when all of the communicator's ranks have called it.
  virtual NcclResult Finalize(Comm comm) = 0;
  virtual void Destroy(Comm comm) = 0;
  // Ends the communicator and all of its kernels, regardless of the peers.
  virtual void Abort(Comm comm) = 0;

  virtual NcclResult Send(const void* bytes, size_t size, int peer, Comm comm, Stream stream) = 0;
  virtual NcclResult Receive(void* bytes, size_t size, int peer, Comm comm, Stream stream) = 0;
  // `received` holds `size` bytes per rank.
  virtual NcclResult AllGather(const void* sent, void* received, size_t size, Comm comm, Stream stream) = 0;

  virtual absl::StatusOr<Stream> CreateStream() = 0;
  virtual void DestroyStream(Stream stream) = 0;
  // Returns an event that ends when all work put on `stream` so far has ended.
  virtual absl::StatusOr<Event> RecordEvent(Stream stream) = 0;
  virtual absl::StatusOr<bool> EventDone(Event event) = 0;
  virtual void DestroyEvent(Event event) = 0;
  // Makes all later work on `stream` wait for `event`.
  virtual absl::Status StreamWait(Stream stream, Event event) = 0;

  virtual absl::StatusOr<void*> Allocate(size_t size) = 0;
  virtual void Free(void* bytes) = 0;
  // Copies between host and device, in either direction, in the order of `stream`.
  virtual absl::Status Copy(void* to, const void* from, size_t size, Stream stream) = 0;
};

// Returns the libraries themselves, in a build with CUDA. Never destroyed.
NcclApi* RealNcclApi();

}  // namespace atl::transport
