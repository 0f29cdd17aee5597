// Ranks as threads of one process, over shared queues: for tests, and for islands of one process. A message is copied
// once, from the sender's buffer into the receiver's, by the rank that posts last. A send therefore ends when its
// receive is posted, as a large send does on the other transports.
//
// An aborted or destroyed peer stays silent, as a dead process does: only Abort or a timeout ends the waits for it.
// Starts no thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/transport/transport.h"

namespace atl::transport {

// Makes `rank_count` instances, one per rank. Each is connected by its own thread with the addresses of all.
std::vector<std::unique_ptr<Transport>> MakeLoopbackTransports(int32_t rank_count,
                                                               const AttemptIdentity& identity = {});

// Makes one instance per identity, for tests of ranks that disagree.
std::vector<std::unique_ptr<Transport>> MakeLoopbackTransports(const std::vector<AttemptIdentity>& identities);

}  // namespace atl::transport
