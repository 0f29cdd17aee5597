// Device transport: NCCL, one communicator and stream per lane, made eagerly and warmed up in Connect, so that no later
// call waits for a peer. Buffers are device memory.
//
// A Send or Receive is put on its lane's stream behind what the compute stream (the device's default stream) holds at
// that moment; Wait makes the compute stream wait for it, not the host. Timeouts of Wait are kept by the watch thread.
// Sizes are the plan's: NCCL sends none along, so that a mismatch shows as a timeout or as NCCL's own error, not as
// INTERNAL with both sizes. A lane from a rank to itself is refused: such a hop is a hand-over within the device.
//
// Threads: one per instance ("nccl-<rank>"), which asks the communicators for errors, keeps the timeouts and takes the
// instance down; it ends with the instance.
//
// The address of rank 0 carries NCCL's unique id; all addresses are sealed with the attempt secret. NCCL's own
// bootstrap connections are not authenticated: keep the island's network to its ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/transport/nccl/nccl_api.h"
#include "worker/transport/transport.h"

namespace atl::transport {

struct NcclOptions {
  int device = 0;
  NcclApi* api = nullptr;  // not owned
};

// A rank that is ready to be connected. FAILED_PRECONDITION DEVICE_UNAVAILABLE without a device; INVALID_ARGUMENT for a
// device or rank that is not there.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const NcclOptions& options, int32_t rank,
                                                             int32_t rank_count, const AttemptIdentity& identity);

}  // namespace atl::transport
