#include "worker/service/checkpoint_writer.h"

#include <utility>
#include <vector>

namespace atl::worker {

CheckpointWriter::CheckpointWriter(storage::BlobStore* store, Clock* clock, std::string write_prefix, std::string nonce,
                                   Written written)
    : store_(store),
      clock_(clock),
      write_prefix_(std::move(write_prefix)),
      nonce_(std::move(nonce)),
      written_(std::move(written)),
      thread_([this] { Loop(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    waiting_.reset();
  }
  thread_.join();
}

void CheckpointWriter::Submit(std::unique_ptr<trainer::Trainer::Snapshot> snapshot) {
  absl::MutexLock lock(&mutex_);
  const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ == nullptr; };
  mutex_.Await(absl::Condition(&free));
  waiting_ = std::move(snapshot);
}

absl::Status CheckpointWriter::Drain() {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ == nullptr && !writing_; };
  mutex_.Await(absl::Condition(&idle));
  return last_;
}

void CheckpointWriter::Loop() {
  for (;;) {
    std::unique_ptr<trainer::Trainer::Snapshot> snapshot;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ != nullptr || closing_; };
      mutex_.Await(absl::Condition(&due));
      if (waiting_ == nullptr) return;
      snapshot = std::move(waiting_);
      writing_ = true;
    }
    WriteOne(std::move(snapshot));
  }
}

void CheckpointWriter::WriteOne(std::unique_ptr<trainer::Trainer::Snapshot> snapshot) {
  const absl::Duration start = clock_->Monotonic();
  const std::string folder = storage::CheckpointFolder(write_prefix_, snapshot->step(), nonce_);
  absl::StatusOr<std::vector<storage::CheckpointFile>> files = snapshot->Write(store_, folder);
  if (files.ok()) {
    WrittenStages stages{.manifest = snapshot->Manifest(), .took = clock_->Monotonic() - start};
    stages.manifest.files = *std::move(files);
    written_(stages);
  } else {
    written_(files.status());
  }
  // Its memory goes before the next snapshot is let in.
  snapshot.reset();
  absl::MutexLock lock(&mutex_);
  last_ = files.status();
  writing_ = false;
}

}  // namespace atl::worker
