// Keeps the networks of this process on its devices as placement::Place says: loads copies ahead, beside the batches.
// Knows no LibTorch.
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
  // Between two looks at what was used; zero: only Step looks.
  absl::Duration interval = absl::Milliseconds(250);
};

// Thread-safe. Devices are named by their places in the list that it was made with.
class DevicePlacer {
 public:
  using Memories = std::vector<std::shared_ptr<NetworkMemory>>;  // by device
  // A thread that loads ahead is started for several devices. `clock` must outlive it.
  DevicePlacer(DevicePlacerOptions options, Memories devices, Clock* clock);
  // Joins the thread, which ends a load first.
  ~DevicePlacer();
  DevicePlacer(const DevicePlacer&) = delete;
  DevicePlacer& operator=(const DevicePlacer&) = delete;

  // Hosts the network on every device, `load_on` being its load there, and returns the one on which it is to be pinned
  // first: it is expected there (NetworkMemory::Expect). The error is that of NetworkMemory::Host; then no device hosts
  // it.
  absl::StatusOr<size_t> Host(const NetworkId& id, int64_t bytes,
                              const std::function<NetworkMemory::Load(size_t device)>& load_on);
  // As often as it was hosted.
  void Forget(const NetworkId& id);
  // A lane computed for the network for so long.
  void Record(const NetworkId& id, absl::Duration computed);
  // Carries out one load, if any is due, and returns whether it did. Blocks while it loads.
  bool Step();
  // Over all devices.
  NetworkMemoryStats stats() const;

 private:
  struct Known {
    int64_t bytes = 0;
    int32_t times = 0;         // Host without Forget
    placement::FadingSum use;  // seconds of lanes
    absl::Duration failed_until = -absl::InfiniteDuration();
  };

  std::vector<placement::Holder> Holders() const;
  // Networks with their use, which shares out what memory there is.
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
