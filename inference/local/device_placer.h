// Distributes the networks of this process over its devices as placement::Place decides, and loads copies ahead while
// batches run. Does not depend on LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/network_id.h"
#include "common/placement/fading_sum.h"
#include "common/placement/placement.h"
#include "inference/local/network_memory.h"

namespace atl::router {

struct DevicePlacerOptions {
  bool replicate = true;  // false: every network lies on one device
  // Interval between two looks at the use of the networks; zero: only Step looks.
  absl::Duration interval = absl::Milliseconds(250);
};

// Thread-safe. A device is identified by its index in the list passed to the constructor.
class DevicePlacer {
 public:
  using Memories = std::vector<std::shared_ptr<NetworkMemory>>;  // by device
  // Starts a thread that loads ahead if there are several devices. `clock` must outlive it.
  DevicePlacer(DevicePlacerOptions options, Memories devices, Clock* clock);
  // Joins the thread, which first finishes a running load.
  ~DevicePlacer();
  DevicePlacer(const DevicePlacer&) = delete;
  DevicePlacer& operator=(const DevicePlacer&) = delete;

  // Hosts the network on every device; `load_on` gives the load function of each. Returns the device on which to pin it
  // first, after calling NetworkMemory::Expect there. On an error of NetworkMemory::Host, no device hosts it.
  absl::StatusOr<size_t> Host(const NetworkId& id, int64_t bytes,
                              const std::function<NetworkMemory::Load(size_t device)>& load_on);
  // Forgets the network; call it once per Host.
  void Forget(const NetworkId& id);
  // Records that a lane computed for the network for this long.
  void Record(const NetworkId& id, absl::Duration computed);
  // Performs one load if one is due, and returns whether it did. Blocks while it loads.
  bool Step();
  // Returns totals over all devices.
  NetworkMemoryStats stats() const;

 private:
  struct Known {
    int64_t bytes = 0;
    int32_t times = 0;         // Host without Forget
    placement::FadingSum use;  // in seconds of lanes
    absl::Duration failed_until = -absl::InfiniteDuration();
  };

  std::vector<placement::Holder> Holders() const;
  // Returns the networks with their use, by which the memory is divided.
  std::vector<placement::WantedNetwork> Wanted(const std::vector<placement::Holder>& holders) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();

  const DevicePlacerOptions options_;
  const Memories devices_;
  Clock* const clock_;

  mutable absl::Mutex mutex_;
  std::map<NetworkId, Known> networks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
