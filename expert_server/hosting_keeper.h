// Brings what this process hosts in line with what it is to host: loads and drops networks, one after the other.
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

// Thread-safe. Owns one thread, joined by the destructor, which blocks in `load`.
class HostingKeeper {
 public:
  struct Calls {
    // The bytes of the network's weights. Blocks.
    std::function<absl::StatusOr<int64_t>(const AssignedNetwork&)> load;
    std::function<void(const NetworkId&)> drop;
    // After a network was loaded, could not be loaded, or was dropped; may be empty. Like the others never under a
    // lock.
    std::function<void()> changed = nullptr;
  };
  // `clock` must outlive the keeper.
  HostingKeeper(Calls calls, Clock* clock);
  ~HostingKeeper();
  HostingKeeper(const HostingKeeper&) = delete;
  HostingKeeper& operator=(const HostingKeeper&) = delete;

  // All that is to be hosted from now on; the rest is dropped, before anything is loaded.
  void Assign(std::vector<AssignedNetwork> assigned);
  // What was loaded is hosted no longer, though nobody dropped it: it is loaded again. Changes nothing of what is not
  // ready.
  void LoadAgain(const NetworkId& id);
  // By network.
  std::vector<placement::HostedNetwork> hosted() const;
  // Waits until everything that is assigned is ready, and returns OK, or the first error of a load.
  absl::Status AwaitReady();

 private:
  struct Entry {
    AssignedNetwork assigned;
    bool wanted = true;  // else it is dropped next
    placement::HostedNetwork hosted;
    int64_t failures = 0;                                 // to load it, in a row
    absl::Duration next_try = -absl::InfiniteDuration();  // of kLoading and kFailed
  };

  void Run();
  void Finish(const NetworkId& id, const absl::StatusOr<int64_t>& loaded);
  // What is to be done now: a drop, else the first load that is due; null when there is nothing before `*look_again`.
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
