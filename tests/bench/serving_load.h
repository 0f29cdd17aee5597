// Sends requests to an engine and records when they were answered.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/engine/engine.h"

namespace atl::bench {

struct TimedRequest {
  absl::Duration at;  // from the start of the load
  router::SampleRequest request;
};

// The outcome of a request; times from the start of the load.
struct ServedRequest {
  absl::Duration scheduled;
  absl::Duration first_image;
  absl::Duration ended;
  int64_t images = 0;
  absl::Status status;
  router::RoutingReport routing;

  absl::Duration latency() const { return ended - scheduled; }
};

// Returns at that moment of the real clock's monotonic time.
void WaitUntil(absl::Duration monotonic);

// A request under way. Thread-safe. The destructor cancels an unfinished request.
class Flying {
 public:
  // `start` is of the real clock's monotonic time. A rejected request counts as ended.
  Flying(router::Engine* engine, const TimedRequest& timed, absl::Duration start);
  ~Flying();

  const ServedRequest& Await();
  int64_t images() const;  // so far
  bool ended() const;

 private:
  class Events;
  const std::shared_ptr<Events> events_;
  std::unique_ptr<router::SampleTicket> ticket_;
};

// Sends every request when it is due, whether or not others have finished, and waits for all. `requests` ascend in
// time.
std::vector<ServedRequest> Play(router::Engine* engine, std::span<const TimedRequest> requests);
// Sends each request when the previous one has finished, regardless of its time.
std::vector<ServedRequest> PlayOneByOne(router::Engine* engine, std::span<const TimedRequest> requests);

// Returns the time from the first schedule to the last end, in seconds, or the first error of a request.
absl::StatusOr<double> Makespan(std::span<const ServedRequest> served);

}  // namespace atl::bench
