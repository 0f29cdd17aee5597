// Host transport: UCX tag matching over shared memory, TCP or RDMA.
//
// Threads: one progress thread per instance ("ucx-<rank>"), asleep on UCX's wakeup descriptor; UCX itself starts one
// more per instance ("async", for TCP connections). Both end with the instance. A posted operation makes progress on
// the progress thread whatever its caller does meanwhile, and waiting uses no CPU.
//
// A dead peer is noticed by UCX over TCP (the connection breaks) but not over shared memory, where only Abort or a
// timeout ends the waits for it. A peer that is gone fails the instance at the first operation that needs it:
// UNAVAILABLE TRANSPORT_PEER_LOST; what it had sent before stays receivable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/transport/transport.h"

namespace atl::transport {

struct UcxOptions {
  // Network interface that TCP listens and connects on; nothing else is bound. "all" for every interface.
  std::string interface = "lo";
  // UCX's names of the transports that may be used. Shared memory (posix, cma) is chosen between ranks of one host.
  // UCX_TLS in the environment wins.
  std::string transports = "tcp,posix,cma,self";
};

// A rank that is ready to be connected. UNAVAILABLE TRANSPORT_UCX when UCX cannot be brought up with `options`.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const UcxOptions& options, int32_t rank, int32_t rank_count,
                                                            const AttemptIdentity& identity);

}  // namespace atl::transport
