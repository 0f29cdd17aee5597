// Keys of the blob store for tasks, made by the operator's program, a few at a time, away from the core's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/spec/task.h"
#include "coordinator/core/executor.h"

namespace atl::coordinator {

struct StorageGrantOptions {
  // Empty: islands use their own keys.
  std::string command;
  // What the program is asked for; what it gives counts.
  absl::Duration lifetime = absl::Hours(1);
  // From the call of Make to its answer.
  absl::Duration limit = absl::Seconds(8);
  std::string blob_root;
};

// Thread-safe. Keys are kept nowhere: whoever asks again gets new ones.
class StorageGrants {
 public:
  using Done = std::function<void(absl::StatusOr<spec::StorageGrant>)>;

  // UNAVAILABLE (STORAGE_GRANT_FAILED) when it cannot be set up.
  static absl::StatusOr<std::unique_ptr<StorageGrants>> Start(StorageGrantOptions options, Clock* clock);
  ~StorageGrants();  // Stop

  // `done` gets the storage of `grant` with keys, on a thread of this object; at once, on this one, where too many wait
  // already, or it has stopped. UNAVAILABLE (STORAGE_GRANT_FAILED).
  void Make(const spec::TaskGrant& grant, Done done);

  // Ends the programs that run; whoever waits is answered.
  void Stop();

 private:
  StorageGrants(StorageGrantOptions options, Clock* clock, int cancel_fd);
  absl::StatusOr<spec::StorageGrant> MakeNow(const spec::TaskGrant& grant, absl::Duration deadline);

  const StorageGrantOptions options_;
  Clock* const clock_;
  const int cancel_fd_;  // an eventfd: readable once it stops
  std::atomic<size_t> next_ = 0;
  std::vector<std::unique_ptr<Executor>> threads_;
};

}  // namespace atl::coordinator
