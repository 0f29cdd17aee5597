// Keeps the networks of this process on its devices as DecidePlacement says: loads copies ahead, beside the batches.
// Knows no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/engine/network_memory.h"
#include "router/policy/device_placement.h"

namespace atl::router {

struct DevicePlacerOptions {
  PlacementOptions placement;
  // Between two looks at what was used; zero: only Step looks.
  absl::Duration interval = absl::Milliseconds(250);
};

// Thread-safe. Devices are named by their places in the list that it was made with.
class DevicePlacer {
 public:
  struct Device {
    std::shared_ptr<NetworkMemory> memory;
    int32_t lanes = 1;
  };
  // A thread that loads ahead is started for several devices. `clock` must outlive it.
  DevicePlacer(DevicePlacerOptions options, std::vector<Device> devices, Clock* clock);
  // Joins the thread, which ends a load first.
  ~DevicePlacer();
  DevicePlacer(const DevicePlacer&) = delete;
  DevicePlacer& operator=(const DevicePlacer&) = delete;

  // Hosts the network on every device, `load_on` being its load there, and tells on which one it is to be pinned first;
  // it is expected there (NetworkMemory::Expect). What NetworkMemory::Host returns; then none hosts it.
  absl::StatusOr<size_t> Host(const NetworkId& id, int64_t bytes,
                              const std::function<NetworkMemory::Load(size_t device)>& load_on);
  // As often as it was hosted.
  void Forget(const NetworkId& id);
  // A lane computed for the network for so long.
  void Record(const NetworkId& id, absl::Duration computed);
  // Carries out one load, if any is due; whether it did. Blocks while it loads.
  bool Step();
  // Over all devices.
  NetworkMemoryStats stats() const;

 private:
  struct Snapshot {
    std::vector<PlacedNetwork> networks;
    std::vector<PlacementDevice> devices;
  };
  Snapshot Look() const;
  void Work();
  void MarkCopies(const Snapshot& snapshot);
  // What is known of the snapshot's networks; false when networks were being hosted while it was taken.
  bool Settle(int64_t generation, Snapshot* snapshot);

  const DevicePlacerOptions options_;
  const std::vector<Device> devices_;
  Clock* const clock_;
  std::vector<int64_t> watchers_;  // by device

  mutable absl::Mutex mutex_;
  NetworkUse use_ ABSL_GUARDED_BY(mutex_);
  std::map<NetworkId, absl::Duration> failed_until_ ABSL_GUARDED_BY(mutex_);
  int32_t hosting_ ABSL_GUARDED_BY(mutex_) = 0;  // Host under way
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  bool changed_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
