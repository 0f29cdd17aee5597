// Ranks as threads of one process, over queues that they share: for tests, and for islands of one process. Messages are
// copied once, from the sender's buffer into the receiver's, by whichever of the two posts last; a send therefore ends
// when its receive is posted, as a large send does on the other transports.
//
// A peer that is aborted or destroyed stays silent, as a dead process does: only Abort or a timeout ends the waits for
// it. No thread is started.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/transport/transport.h"

namespace atl::transport {

// `rank_count` instances, one per rank, each to be connected by its own thread with the addresses of all.
std::vector<std::unique_ptr<Transport>> MakeLoopbackTransports(int32_t rank_count,
                                                               const AttemptIdentity& identity = {});

// The same with one identity per rank, for tests of ranks that disagree.
std::vector<std::unique_ptr<Transport>> MakeLoopbackTransports(const std::vector<AttemptIdentity>& identities);

}  // namespace atl::transport
