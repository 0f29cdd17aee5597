// What an open-loop load amounts to: latencies, refusals, throughput. Pure.
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
  absl::Duration scheduled;  // when it was due; it is sent a little later at best
  absl::Duration sent;
  absl::Duration ended;
  std::optional<absl::Duration> first_image;
  int64_t images = 0;
  std::string version;  // that drew them
  absl::Status status;
  absl::Duration retry_delay;  // that a refusal carries; zero: none
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
  int64_t images = 0;            // of requests that are done
  double images_per_second = 0;  // from the first request's schedule to the last one's end
  // Of requests that are done, from the scheduled time: what a user waits who does not know that the client was late.
  Latency latency;
  Latency first_image;
  absl::Duration least_retry_delay;
  absl::Duration most_retry_delay;
  absl::Duration latest_sent;               // after its schedule: what the client itself was late by
  std::map<std::string, int64_t> failures;  // by what they say
  std::map<std::string, int64_t> versions;  // requests that are done, by what drew them
};

// The smallest value that at least a share `q` of all do not exceed (nearest rank); zero for none.
absl::Duration Percentile(std::vector<absl::Duration> values, double q);

LoadFigures Summarise(std::span<const RequestOutcome> outcomes);

}  // namespace atl::bench
