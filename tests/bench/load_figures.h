// Summarises an open-loop load: latencies, refusals, throughput. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace atl::bench {

// One request of a load. Times are from the load's start.
struct RequestOutcome {
  absl::Duration scheduled;  // when it was due; it is sent slightly later at best
  absl::Duration sent;
  absl::Duration ended;
  std::optional<absl::Duration> first_image;
  int64_t images = 0;
  std::string version;  // that drew the images
  absl::Status status;
  absl::Duration retry_delay;  // in a refusal; zero: none
};

struct Latency {
  absl::Duration p50;
  absl::Duration p90;
  absl::Duration p99;
  absl::Duration most;
};

struct LoadFigures {
  int64_t requests = 0;
  int64_t done = 0;
  int64_t refused = 0;  // RESOURCE_EXHAUSTED
  int64_t refused_with_delay = 0;
  int64_t failed = 0;            // any other error
  int64_t images = 0;            // in finished requests
  double images_per_second = 0;  // from the first request's schedule to the last one's end
  // Latencies of finished requests from the scheduled time, so that a late client counts as waiting of the user.
  Latency latency;
  Latency first_image;
  absl::Duration least_retry_delay;
  absl::Duration most_retry_delay;
  absl::Duration latest_sent;               // the largest delay of the client itself after a schedule
  std::map<std::string, int64_t> failures;  // by message
  std::map<std::string, int64_t> versions;  // finished requests by version
};

// Returns the smallest value that at least a share `q` of all values do not exceed (nearest rank); zero for no values.
absl::Duration Percentile(std::vector<absl::Duration> values, double q);

LoadFigures Summarise(std::span<const RequestOutcome> outcomes);

}  // namespace atl::bench
