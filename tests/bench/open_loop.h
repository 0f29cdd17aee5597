// Sends requests to a router at given arrival times, whether or not earlier ones have finished.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "tests/bench/load_figures.h"

namespace atl::bench {

// Sends request(i) at arrivals[i] and returns when all have ended. Blocks; images are counted and dropped. This thread
// calls `tick` from time to time with the number of requests sent and ended.
std::vector<RequestOutcome> DriveOpenLoop(atlpb::sample::v1::SampleService::StubInterface* stub,
                                          std::span<const absl::Duration> arrivals,
                                          const std::function<atlpb::sample::v1::SampleRequest(size_t)>& request,
                                          absl::Duration request_timeout,
                                          const std::function<void(int64_t sent, int64_t ended)>& tick);

}  // namespace atl::bench
