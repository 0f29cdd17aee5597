// Moves tensors' bytes between the ranks of one attempt. One contract, three transports: loopback (threads of one
// process), ucx (hosts), nccl (GPUs).
//
// An instance belongs to one attempt. It is built with every peer's address, and all of its lanes are known in advance.
// After any error, every pending and every later call fails with the first error, and the owner builds a new instance
// for the next attempt.
//
// Thread-safety: one thread posts and waits; Abort may come from any thread. All Work handles must be waited for, or
// dropped after Abort, before the instance is destroyed. If the instance is not aborted, its destructor first delivers
// the data in flight of its finished sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::transport {

enum class LaneKind : uint8_t {
  kForward = 0,           // boundary tensors along the model
  kGradient = 1,          // their gradients, back
  kFrozen = 2,            // inputs and outputs of frozen components
  kControl = 3,           // norms, small agreements
  kReduce = 4,            // gradients, between replicas
  kSelfConditioning = 5,  // boundary tensors of the extra forward; into chunk 0 the last stage's result
};

// A lane carries messages in order from one rank to another (on host transports also to itself). (from, to, chunk,
// kind) identifies it. `chunk` is the stage that the message enters (kForward, kSelfConditioning) or leaves
// (kGradient), or whose gradients it holds (kReduce). Messages keep the order of posting, on both sides.
struct Lane {
  int32_t from = 0;
  int32_t to = 0;
  int32_t chunk = 0;
  LaneKind kind = LaneKind::kForward;
  auto operator<=>(const Lane&) const = default;
};

std::string ToString(const Lane& lane);

// The completion of one posted operation. Movable handle; dropping it without waiting is allowed only after Abort.
class Work {
 public:
  virtual ~Work() = default;
  // Returns whether the operation has ended, with success or not. Does not block.
  virtual bool Done() = 0;
  // Blocks, without spinning, until the operation ended or `timeout` passed (DEADLINE_EXCEEDED; the instance is then
  // aborted). On the host transports the buffer may be reused after OK. On a device the wait orders the device's
  // stream, not the host.
  virtual absl::Status Wait(absl::Duration timeout) = 0;
  // Blocks, without spinning, until the operation ended or `timeout` passed, and returns Done. Aborts nothing. On a
  // device it does not block.
  virtual bool DoneWithin(absl::Duration timeout) = 0;
  // Returns when a finished operation ended, on Clock::Real()'s monotonic time; nullopt on a device, which does not
  // report it.
  virtual std::optional<absl::Duration> EndedAt() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t rank_count() const = 0;

  // Returns this rank's address, which every peer needs before Connect.
  virtual std::string Address() const = 0;

  // Connects to every peer and opens every lane. Returns when each peer has proved the attempt secret, or an error by
  // `timeout`: ABORTED (STALE_ATTEMPT) for a peer of another incarnation or attempt, PERMISSION_DENIED for another
  // secret, FAILED_PRECONDITION for other lanes, DEADLINE_EXCEEDED for a silent peer. `addresses[r]` is rank r's.
  // `lanes` is the whole island's list, the same on every rank in any order. Called once.
  virtual absl::Status Connect(const std::vector<std::string>& addresses, const std::vector<Lane>& lanes,
                               absl::Duration timeout) = 0;

  // Sends `bytes` along `lane` (lane.from is this rank). Never blocks on the peer's compute; the send makes progress
  // while this rank computes. The buffer must stay untouched until Wait returned.
  virtual absl::StatusOr<std::unique_ptr<Work>> Send(const Lane& lane, std::span<const std::byte> bytes) = 0;

  // Receives exactly bytes.size() bytes of the next message on `lane` (lane.to is this rank). A message of another size
  // is INTERNAL with both sizes.
  virtual absl::StatusOr<std::unique_ptr<Work>> Receive(const Lane& lane, std::span<std::byte> bytes) = 0;

  // Sums `values` over all ranks, in rank order on every rank, so that all hold the same bits. Blocks. Every rank calls
  // it with the same number of values, in the same order among its own calls.
  virtual absl::Status AllReduceSum(std::span<double> values, absl::Duration timeout) = 0;

  // Fails all pending and later operations with `reason`. Idempotent; the first reason stays. Returns at once.
  virtual void Abort(absl::Status reason) = 0;
};

// The facts by which a peer proves that it belongs to the same attempt.
struct AttemptIdentity {
  int64_t incarnation = 0;
  int64_t attempt = 0;
  std::string secret;
};

}  // namespace atl::transport
