// Drives a router with requests that arrive when they arrive, whether or not earlier ones are done.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "tests/bench/load_figures.h"

namespace atl::bench {

// Sends request(i) at arrivals[i] and returns when all have ended. Blocks; images are counted and dropped. `tick` is
// called now and then from this thread with the number of requests sent and ended.
std::vector<RequestOutcome> DriveOpenLoop(atlpb::sample::v1::SampleService::StubInterface* stub,
                                          std::span<const absl::Duration> arrivals,
                                          const std::function<atlpb::sample::v1::SampleRequest(size_t)>& request,
                                          absl::Duration request_timeout,
                                          const std::function<void(int64_t sent, int64_t ended)>& tick);

}  // namespace atl::bench
