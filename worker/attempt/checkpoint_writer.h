// Writes snapshots and step traces of one attempt on its own thread while training continues.
//
// Thread-safe. Owner: the training attempt. The destructor finishes the running write, drops the waiting one and joins
// the thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/formats/checkpoint.h"
#include "common/storage/blob_store.h"
#include "worker/trainer/trainer.h"

namespace atl::worker {

struct WrittenStages {
  // With this rank's files. The caller fills in task, attempt and build.
  storage::CheckpointManifest manifest;
  absl::Duration took;
};

// A small diagnostic file; losing one is not an error.
struct TraceFile {
  std::string uri;
  std::string text;
  std::string superseded_uri;  // deleted after the write; empty: none
};

class CheckpointWriter {
 public:
  using Written = std::function<void(const absl::StatusOr<WrittenStages>&)>;

  // Writes below CheckpointFolder(write_prefix, step, nonce). `written` is called on the writer's thread.
  CheckpointWriter(storage::BlobStore* store, Clock* clock, std::string write_prefix, std::string nonce,
                   Written written);
  ~CheckpointWriter();

  // Submits a snapshot. Blocks while another one waits, so that memory holds at most one being written and one waiting.
  void Submit(std::unique_ptr<trainer::Trainer::Snapshot> snapshot);
  // Never blocks. Drops the trace, with a log line, if others wait or if the write fails.
  void SubmitTrace(TraceFile trace);
  // Blocks until all submitted snapshots and traces are written. Returns the status of the last write; a later success
  // makes up for an earlier failure.
  absl::Status Drain();
  // Returns why work that needs a checkpoint should stop: the store, although reachable and not full, rejected three
  // writes in a row. Returns OK if work may continue.
  absl::Status refused() const;

 private:
  void Loop();
  void WriteTrace(const TraceFile& trace);
  void WriteOne(std::unique_ptr<trainer::Trainer::Snapshot> snapshot);

  storage::BlobStore* const store_;
  Clock* const clock_;
  const std::string write_prefix_;
  const std::string nonce_;
  const Written written_;

  mutable absl::Mutex mutex_;
  std::unique_ptr<trainer::Trainer::Snapshot> waiting_ ABSL_GUARDED_BY(mutex_);
  std::deque<TraceFile> traces_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status last_ ABSL_GUARDED_BY(mutex_);
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;      // since the last write that succeeded
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);  // the latest of them
  std::thread thread_;
};

}  // namespace atl::worker
