// Device transport: NCCL, with one communicator and stream per lane. Connect makes and warms them up eagerly, so that
// no later call waits for a peer. Buffers are device memory.
//
// A Send or Receive runs on its lane's stream, behind the work that the compute stream (the device's default stream)
// holds at that moment. Wait makes the compute stream wait for it, not the host. The watch thread enforces the timeouts
// of Wait. Sizes come from the plan, because NCCL sends none: a mismatch shows as a timeout or as NCCL's own error, not
// as INTERNAL with both sizes. A lane from a rank to itself is rejected; such a hop is a hand-over within the device.
//
// Threads: one per instance ("nccl-<rank>"). It polls the communicators for errors, enforces the timeouts and tears the
// instance down; it ends with the instance.
//
// The address of rank 0 contains NCCL's unique id; all addresses are sealed with the attempt secret. NCCL's own
// bootstrap connections are not authenticated: restrict the island's network to its ranks.
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

// Returns a rank that is ready to connect. FAILED_PRECONDITION DEVICE_UNAVAILABLE without a device; INVALID_ARGUMENT
// for an unknown device or rank.
absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const NcclOptions& options, int32_t rank,
                                                             int32_t rank_count, const AttemptIdentity& identity);

}  // namespace atl::transport
