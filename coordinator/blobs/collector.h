// Deletes unneeded files: those of checkpoints that are no longer kept, files that never got a row, and files of
// deleted jobs. coordinator/jobs/retention.h decides which files.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/storage/blob_store.h"
#include "coordinator/core/core.h"

namespace atl::coordinator {

struct CollectorOptions {
  absl::Duration interval = absl::Minutes(10);
  // Files without a row are kept this long.
  absl::Duration min_age = absl::Hours(24);
  // Called on the thread, with STORE_SUPERSEDED, when another store has replaced this one. Null: not called.
  std::function<void(const absl::Status&)> superseded;
};

// Collects from a thread of its own, joined by the destructor. Thread-safe.
class Collector {
 public:
  // Runs a function with the core on the core's thread and waits for it; false when the core has stopped.
  using WithCore = std::function<bool(const std::function<void(Core&)>&)>;

  Collector(storage::BlobStore* blobs, Clock* clock, WithCore with_core, std::string store_id, CoreMetrics* metrics,
            CollectorOptions options);
  ~Collector();  // Stop, and waits

  // Runs one round on the calling thread. Stops at the first error; deleted files stay deleted, and the next round
  // continues. Deletes nothing and returns FAILED_PRECONDITION if another store has taken a higher epoch
  // (STORE_SUPERSEDED), or while collection is held after a restore (COLLECTION_HELD).
  absl::Status CollectOnce();

  // Prevents new rounds. A running round ends with UNAVAILABLE (COORDINATOR_STOPPING) before the next file that it
  // would delete. Does not wait for that.
  void Stop();

 private:
  // Files of attempts, and the folder of each.
  struct Listing {
    std::vector<jobs::StoredFile> files;
    std::vector<jobs::AttemptFolder> folders;
  };

  void Run();
  absl::Status CheckRunning();
  absl::Status CheckAllowed();
  // Runs `body` with the core; UNAVAILABLE (COORDINATOR_STOPPING) if the core has stopped.
  absl::Status InCore(const std::function<absl::Status(Core&)>& body);
  absl::Status List(Listing* listing);
  absl::Status DeleteCheckpoints(const std::vector<store::CheckpointRow>& rows);
  absl::Status DeleteFiles(const std::vector<jobs::StoredFile>& files, const Core::CollectionFacts& facts);
  absl::Status ForgetEmptyJobs(const std::vector<store::DeletedJob>& jobs);

  storage::BlobStore& blobs_;
  Clock& clock_;
  const WithCore with_core_;
  const std::string store_id_;
  CoreMetrics& metrics_;
  const CollectorOptions options_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::coordinator
