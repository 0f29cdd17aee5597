// Loads and drops networks, one after the other, until this process hosts exactly the assigned ones.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/placement/hosted_network.h"

namespace atl::worker {

// A network that this process is to host.
struct AssignedNetwork {
  NetworkId id;
  std::string uri;  // folder that holds the version's model_index.json
  bool operator==(const AssignedNetwork&) const = default;
};

// Thread-safe. Owns one thread, joined by the destructor, which blocks while `load` runs.
class HostingKeeper {
 public:
  struct Calls {
    // Returns the bytes of the network's weights. Blocks.
    std::function<absl::StatusOr<int64_t>(const AssignedNetwork&)> load;
    std::function<void(const NetworkId&)> drop;
    // Called after a network was loaded, failed to load, or was dropped; may be empty. No call runs under a lock.
    std::function<void()> changed = nullptr;
  };
  // `clock` must outlive the keeper.
  HostingKeeper(Calls calls, Clock* clock);
  ~HostingKeeper();
  HostingKeeper(const HostingKeeper&) = delete;
  HostingKeeper& operator=(const HostingKeeper&) = delete;

  // Sets all networks to host from now on. The others are dropped before any network is loaded.
  void Assign(std::vector<AssignedNetwork> assigned);
  // Loads a network again that was ready but is no longer hosted, although it is still assigned. Does nothing if the
  // network is not ready.
  void LoadAgain(const NetworkId& id);
  // Ordered by network.
  std::vector<placement::HostedNetwork> hosted() const;
  // Blocks until all assigned networks are ready and returns OK, or returns the first error of a load.
  absl::Status AwaitReady();

 private:
  struct Entry {
    AssignedNetwork assigned;
    bool wanted = true;  // if false, it is dropped next
    placement::HostedNetwork hosted;
    int64_t failures = 0;                                 // to load it, in a row
    absl::Duration next_try = -absl::InfiniteDuration();  // of kLoading and kFailed
  };

  void Run();
  void Finish(const NetworkId& id, const absl::StatusOr<int64_t>& loaded);
  // Returns the next entry to work on: one to drop, or else the first load that is due. Returns null if none is due
  // before `*look_again`.
  Entry* Next(absl::Duration now, absl::Duration* look_again) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Calls calls_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  std::map<NetworkId, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::worker
