// Keys of the blob store for tasks. The operator's program makes them, a few at a time, outside the core's thread.
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
  // The lifetime that the program is asked for; the lifetime in its answer applies.
  absl::Duration lifetime = absl::Hours(1);
  // From the call of Make to its answer.
  absl::Duration limit = absl::Seconds(8);
  std::string blob_root;
};

// Thread-safe. Stores no keys: a caller that asks again gets new ones.
class StorageGrants {
 public:
  using Done = std::function<void(absl::StatusOr<spec::StorageGrant>)>;

  // UNAVAILABLE (STORAGE_GRANT_FAILED) when the setup fails.
  static absl::StatusOr<std::unique_ptr<StorageGrants>> Start(StorageGrantOptions options, Clock* clock);
  ~StorageGrants();  // Stop

  // Calls `done` with the storage of `grant` with keys, on a thread of this object. If too many requests wait already,
  // or Stop was called, calls it at once on the caller's thread. UNAVAILABLE (STORAGE_GRANT_FAILED).
  void Make(const spec::TaskGrant& grant, Done done);

  // Ends the running programs; every waiting request is answered.
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
