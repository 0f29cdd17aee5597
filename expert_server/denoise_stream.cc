#include "expert_server/denoise_stream.h"

#include <utility>
#include <vector>

#include "common/base/errors.h"
#include "common/wire/status.h"
#include "fmt/format.h"

namespace atl::worker {

std::shared_ptr<DenoiseStream> DenoiseStream::Open(Options options, LaneQueue* queue, Clock* clock) {
  std::shared_ptr<DenoiseStream> stream(new DenoiseStream(std::move(options), queue, clock));
  stream->self_ = stream;
  stream->Pump();
  return stream;
}

DenoiseStream::DenoiseStream(Options options, LaneQueue* queue, Clock* clock)
    : options_(std::move(options)), queue_(queue), clock_(clock) {}

bool DenoiseStream::ReadIsDue() const {
  const size_t held = under_way_.size() + outgoing_.size() + (writing_ ? 1 : 0);
  return !reading_ && !reads_over_ && !broken_ && held < options_.max_frames;
}

void DenoiseStream::Pump() {
  // gRPC is called outside the lock; what is marked here keeps the call open until it is done.
  bool read = false;
  bool write = false;
  bool finish = false;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (finishing_) return;
    read = ReadIsDue();
    reading_ |= read;
    if (!writing_ && !outgoing_.empty()) {
      write = writing_ = true;
      current_ = std::move(outgoing_.front());
      outgoing_.pop_front();
    }
    finish = (broken_ || (reads_over_ && under_way_.empty())) && !reading_ && !writing_;
    finishing_ = finish;
    status = final_;
  }
  if (read) StartRead(&incoming_);
  if (write) StartWrite(&current_);
  if (finish) Finish(rpc::ToGrpc(status));
}

void DenoiseStream::OnReadDone(bool ok) {
  absl::Status status;
  if (ok) {
    absl::StatusOr<DenoiseFrame> frame = DecodeRequest(&incoming_);
    status = frame.ok() ? Take(*std::move(frame)) : frame.status();
  }
  {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    reads_over_ |= !ok;
  }
  if (!status.ok()) return Break(status);
  Pump();
}

absl::Status DenoiseStream::Take(DenoiseFrame frame) {
  const int64_t id = frame.id;
  int64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) return absl::OkStatus();
    if (frame.cancel) {
      const auto batch = under_way_.find(id);
      if (batch == under_way_.end()) return absl::OkStatus();
      number = batch->second;
    } else if (under_way_.contains(id)) {
      // The answers of two batches with one number could not be distinguished.
      return MakeError(absl::StatusCode::kInvalidArgument, "DUPLICATE_BATCH",
                       fmt::format("expected a new number for each batch, found {} while it is under way", id));
    } else {
      number = options_.next_evaluation();
      under_way_[id] = number;
    }
  }
  if (frame.cancel) {
    queue_->Cancel(number);
    return absl::OkStatus();
  }
  if (const absl::Status checked = CheckRows(frame.evaluation); !checked.ok()) {
    Answer(id, checked);
    return absl::OkStatus();
  }
  auto evaluation = std::make_shared<router::Evaluation>(std::move(frame.evaluation));
  evaluation->id = number;
  evaluation->deadline = clock_->Monotonic() + frame.timeout;
  queue_->Submit(std::move(evaluation),
                 [self = shared_from_this(), id](auto answer) { self->Answer(id, std::move(answer)); });
  return absl::OkStatus();
}

void DenoiseStream::Answer(int64_t id, absl::StatusOr<router::EvaluationAnswer> answer) {
  grpc::ByteBuffer bytes = EncodeAnswer(id, std::move(answer));
  {
    absl::MutexLock lock(&mutex_);
    under_way_.erase(id);
    if (!broken_) outgoing_.push_back(std::move(bytes));
  }
  Pump();
}

void DenoiseStream::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
  }
  if (!ok) return Break(absl::CancelledError("the router went away"));
  Pump();
}

void DenoiseStream::OnCancel() {
  Break(absl::CancelledError("the router went away"));
}

void DenoiseStream::Break(const absl::Status& status) {
  std::vector<int64_t> cancelled;
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_) final_ = status;
    broken_ = true;
    outgoing_.clear();
    for (const auto& [id, number] : under_way_) cancelled.push_back(number);
  }
  for (const int64_t number : cancelled) queue_->Cancel(number);
  Pump();
}

void DenoiseStream::OnDone() {
  const std::shared_ptr<DenoiseStream> last = std::move(self_);
  options_.closed();
}

}  // namespace atl::worker
