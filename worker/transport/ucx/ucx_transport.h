// Host transport: UCX tag matching over shared memory, TCP or RDMA.
//
// Threads: one progress thread per instance ("ucx-<rank>"), asleep on UCX's wakeup descriptor; UCX itself starts one
// more per instance ("async", for TCP connections). Both end with the instance. A posted operation makes progress on
// the progress thread independently of its caller, and waiting uses no CPU.
//
// UCX detects a dead peer over TCP (the connection breaks) but not over shared memory, where only Abort or a timeout
// ends the waits for it. A lost peer fails the instance at the first operation that needs it: UNAVAILABLE
// TRANSPORT_PEER_LOST. Data that it had sent before can still be received.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/transport/transport.h"

namespace atl::transport {

struct UcxOptions {
  // Network interface on which TCP listens and connects; no other is bound. "all" for every interface.
  std::string interface = "lo";
  // UCX's names of the permitted transports. Shared memory (posix, cma) is chosen between ranks of one host. UCX_TLS in
  // the environment takes precedence.
  std::string transports = "tcp,posix,cma,self";
};

// Returns a rank that is ready to connect. UNAVAILABLE TRANSPORT_UCX if UCX cannot start with `options`.
absl::StatusOr<std::unique_ptr<Transport>> MakeUcxTransport(const UcxOptions& options, int32_t rank, int32_t rank_count,
                                                            const AttemptIdentity& identity);

}  // namespace atl::transport
