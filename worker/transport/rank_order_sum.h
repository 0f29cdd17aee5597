// All-reduce over the collective lanes, for transports that have no collective of their own.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Rank 0 receives every rank's values, adds them in rank order and sends the sums to all: every rank holds the same
// bits. Meant for small payloads (norms, agreements). Blocks for at most `timeout`; on any error the instance is
// aborted.
absl::Status RankOrderSum(Transport* transport, std::span<double> values, absl::Duration timeout);

}  // namespace atl::transport
