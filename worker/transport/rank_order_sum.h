// All-reduce over the collective lanes, for transports without their own collectives.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/transport/transport.h"

namespace atl::transport {

// Rank 0 receives every rank's values, adds them in rank order and sends the sums to all, so that every rank holds the
// same bits. Meant for small payloads (norms, agreements). Blocks for at most `timeout`; any error aborts the instance.
absl::Status RankOrderSum(Transport* transport, std::span<double> values, absl::Duration timeout);

}  // namespace atl::transport
