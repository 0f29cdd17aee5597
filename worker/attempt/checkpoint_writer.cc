#include "worker/attempt/checkpoint_writer.h"

#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "worker/attempt/attempt_end.h"

namespace atl::worker {
namespace {

// More than ever wait unless the store stands still.
constexpr size_t kWaitingTraces = 4;

// One or two may be an accident of the store.
constexpr int kMostRefusals = 3;

absl::StatusOr<std::vector<storage::CheckpointFile>> WriteShard(trainer::Trainer::Snapshot* snapshot,
                                                                storage::BlobStore* store, const std::string& folder) {
  ATOLL_RETURN_IF_ERROR(Failpoint("shard.before_write"));
  absl::StatusOr<std::vector<storage::CheckpointFile>> files = snapshot->Write(store, folder);
  ATOLL_RETURN_IF_ERROR(files.status());
  ATOLL_RETURN_IF_ERROR(Failpoint("shard.after_write"));
  return files;
}

}  // namespace

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
    traces_.clear();
  }
  thread_.join();
}

void CheckpointWriter::Submit(std::unique_ptr<trainer::Trainer::Snapshot> snapshot) {
  absl::MutexLock lock(&mutex_);
  const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return waiting_ == nullptr; };
  mutex_.Await(absl::Condition(&free));
  waiting_ = std::move(snapshot);
}

void CheckpointWriter::SubmitTrace(TraceFile trace) {
  absl::MutexLock lock(&mutex_);
  if (traces_.size() < kWaitingTraces) {
    traces_.push_back(std::move(trace));
  } else {
    spdlog::warn("trace {} dropped: {} wait to be written", trace.uri, traces_.size());
  }
}

absl::Status CheckpointWriter::Drain() {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_ == nullptr && traces_.empty() && !writing_;
  };
  mutex_.Await(absl::Condition(&idle));
  return last_;
}

absl::Status CheckpointWriter::refused() const {
  absl::MutexLock lock(&mutex_);
  if (refusals_ < kMostRefusals) return absl::OkStatus();
  return WithContext(refusal_, fmt::format("{} checkpoints in a row could not be written", refusals_));
}

void CheckpointWriter::Loop() {
  for (;;) {
    std::unique_ptr<trainer::Trainer::Snapshot> snapshot;
    std::deque<TraceFile> traces;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return waiting_ != nullptr || !traces_.empty() || closing_;
      };
      mutex_.Await(absl::Condition(&due));
      if (waiting_ == nullptr && traces_.empty()) return;
      snapshot = std::move(waiting_);
      traces.swap(traces_);
      writing_ = true;
    }
    if (snapshot != nullptr) WriteOne(std::move(snapshot));
    for (const TraceFile& trace : traces) WriteTrace(trace);
    absl::MutexLock lock(&mutex_);
    writing_ = false;
  }
}

void CheckpointWriter::WriteOne(std::unique_ptr<trainer::Trainer::Snapshot> snapshot) {
  const absl::Duration start = clock_->Monotonic();
  const std::string folder = storage::CheckpointFolder(write_prefix_, snapshot->step(), nonce_);
  absl::StatusOr<std::vector<storage::CheckpointFile>> files = WriteShard(snapshot.get(), store_, folder);
  const absl::Status wrote = files.status();
  absl::Status status = wrote;
  if (wrote.ok()) {
    WrittenStages stages{.manifest = snapshot->Manifest(), .took = clock_->Monotonic() - start};
    stages.manifest.files = *std::move(files);
    written_(stages);
    status = Failpoint("shard.after_report");
  } else {
    written_(wrote);
  }
  // Its memory goes before the next snapshot is let in.
  snapshot.reset();
  absl::MutexLock lock(&mutex_);
  last_ = status;
  if (wrote.ok()) {
    refusals_ = 0;
  } else if (!MayBeTakenLater(wrote)) {
    ++refusals_;
    refusal_ = wrote;
  }
}

void CheckpointWriter::WriteTrace(const TraceFile& trace) {
  absl::Status status = store_->Write(trace.uri, trace.text).status();
  if (status.ok() && !trace.superseded_uri.empty()) status = store_->Delete(trace.superseded_uri);
  if (!status.ok()) spdlog::warn("trace {} not written: {}", trace.uri, status.ToString());
}

}  // namespace atl::worker
