// Writes snapshots and step traces of one attempt on a thread of its own, while training goes on.
//
// Thread-safe. Owner: the training attempt; its destructor finishes the write in progress, forgets the one that waits
// and joins the thread.
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
  // With this rank's files; task, attempt and build are not the writer's to know.
  storage::CheckpointManifest manifest;
  absl::Duration took;
};

// A small file for people: losing one is no error.
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

  // Hands a snapshot over. Blocks while one waits already: memory holds one in writing and one in waiting, no more.
  void Submit(std::unique_ptr<trainer::Trainer::Snapshot> snapshot);
  // Never blocks: a trace that comes while others wait is dropped, as one that cannot be written is, with a log line.
  void SubmitTrace(TraceFile trace);
  // Blocks until everything handed over is written. The status of the last write: an earlier one that failed is made
  // good by a later one.
  absl::Status Drain();
  // Why nothing more should be done that a checkpoint is to keep: three writes in a row were refused, by a store that
  // was neither away nor full. OK: it may go on.
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
