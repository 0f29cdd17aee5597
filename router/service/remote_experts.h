// The expert servers that a router was told of, as lanes, and whether they host all of a version.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/engine/lane.h"
#include "router/engine/served_version.h"

namespace atl::router {

// "all", "router" or "none": which networks of a version a router evaluates itself, whatever servers do.
enum class OwnNetworks { kAll, kRouter, kNone };

// Thread-safe.
class RemoteExperts {
 public:
  // One lane per address, each connecting in the background. `clock` must outlive the lanes.
  RemoteExperts(const std::vector<std::string>& addresses, Clock* clock);

  const std::vector<std::shared_ptr<ExpertLane>>& lanes() const { return lanes_; }

  // The networks of a version that no server hosts now, ascending; of experts alone, or with the router network.
  std::vector<NetworkId> Missing(const ServedVersion& version, bool with_router) const;
  // Waits until none is missing. UNAVAILABLE with reason EXPERTS_MISSING names those that are after `timeout`, or when
  // Stop was called.
  absl::Status AwaitHosted(const ServedVersion& version, bool with_router, absl::Duration timeout);
  // Ends what waits, now and later.
  void Stop();

 private:
  Clock* const clock_;
  const std::vector<std::string> addresses_;
  std::vector<std::shared_ptr<ExpertLane>> lanes_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace atl::router
