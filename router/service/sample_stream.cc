#include "router/service/sample_stream.h"

#include "common/base/errors.h"
#include "router/service/sample_wire.h"

namespace atl::router {

using atlpb::sample::v1::SampleResponse;

namespace {

// Previews beyond this go with the next message: one must stay well below the largest that a caller takes.
constexpr size_t kMaxPreviewBytes = size_t{4} << 20;

absl::Status CancelledStatus() {
  return MakeError(absl::StatusCode::kCancelled, "REQUEST_CANCELLED",
                   "the request was cancelled while its images were delivered");
}

}  // namespace

std::shared_ptr<SampleStream> SampleStream::Create(RunningRequests* requests) {
  std::shared_ptr<SampleStream> stream(new SampleStream(requests));
  stream->self_ = stream;
  return stream;
}

void SampleStream::Register() {
  request_id_ = requests_->Add([weak = weak_from_this()] {
    if (const std::shared_ptr<SampleStream> stream = weak.lock()) stream->CancelRequest();
  });
}

void SampleStream::Hold(std::unique_ptr<SampleTicket> ticket) {
  absl::MutexLock lock(&mutex_);
  // Otherwise the ticket is dropped here, after the lock: the stream needs it no more.
  if (!over_ && !broken_) ticket_.swap(ticket);
}

void SampleStream::OnQueued(int64_t position, const std::string& version) {
  SampleResponse event;
  event.mutable_queued()->set_position(static_cast<int32_t>(position));
  event.mutable_queued()->set_version(version);
  event.mutable_queued()->set_request_id(request_id_);
  Push(std::move(event));
}

void SampleStream::OnProgress(int32_t step, int32_t total_steps) {
  SampleResponse event;
  event.mutable_progress()->set_step(step);
  event.mutable_progress()->set_total_steps(total_steps);
  Push(std::move(event));
}

void SampleStream::OnPreviews(std::vector<SampledImage> previews) {
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) return;
    for (SampledImage& preview : previews) {
      const int32_t index = preview.index;
      previews_[index] = ToProto(std::move(preview));
    }
  }
  Pump();
}

void SampleStream::OnImage(SampledImage image) {
  {
    absl::MutexLock lock(&mutex_);
    previews_.erase(image.index);
  }
  SampleResponse event;
  *event.mutable_image() = ToProto(std::move(image));
  Push(std::move(event));
}

void SampleStream::OnDone(const SampleReport& report) {
  SampleResponse event;
  *event.mutable_done() = ToProto(report);
  Push(std::move(event));
  PushLast(absl::OkStatus());
}

void SampleStream::OnError(const absl::Status& status) {
  PushLast(status);
}

void SampleStream::Push(SampleResponse event) {
  {
    absl::MutexLock lock(&mutex_);
    if (broken_) return;
    if (event.has_progress()) progress_ = event.progress();
    if (event.has_progress() && !pending_.empty() && pending_.back().has_progress()) {
      pending_.back() = std::move(event);
    } else {
      pending_.push_back(std::move(event));
    }
  }
  Pump();
}

void SampleStream::PushLast(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    previews_.clear();
    // Cancelled while the engine finished: its images were not written.
    last_ = broken_ && status.ok() ? CancelledStatus() : status;
  }
  Pump();
}

bool SampleStream::TakeNext() {
  if (!pending_.empty()) {
    current_ = std::move(pending_.front());
    pending_.pop_front();
    if (!current_.has_progress()) return true;
  } else if (!previews_.empty()) {
    current_.Clear();
    *current_.mutable_progress() = progress_;
  } else {
    return false;
  }
  size_t bytes = 0;
  while (!previews_.empty() && bytes < kMaxPreviewBytes) {
    bytes += previews_.begin()->second.data().size();
    *current_.mutable_progress()->add_previews() = std::move(previews_.begin()->second);
    previews_.erase(previews_.begin());
  }
  return true;
}

void SampleStream::Pump() {
  // gRPC is called outside the lock. Being busy keeps the call alive: it cannot be over before this write or finish is.
  std::optional<absl::Status> finish;
  {
    absl::MutexLock lock(&mutex_);
    if (busy_) return;
    if (!TakeNext()) {
      if (!last_) return;
      finish = last_;
    }
    busy_ = true;
  }
  if (finish) {
    // Before its caller may know that it is over.
    if (!request_id_.empty()) requests_->Remove(request_id_);
    Finish(ToGrpcWithRetry(*finish));
    return;
  }
  StartWrite(&current_);
}

void SampleStream::OnWriteDone(bool ok) {
  if (!ok) DropTicket();
  {
    absl::MutexLock lock(&mutex_);
    busy_ = false;
  }
  Pump();
}

void SampleStream::OnNotTaken() {
  {
    absl::MutexLock lock(&mutex_);
    last_ = MakeError(absl::StatusCode::kDeadlineExceeded, "RESULTS_NOT_TAKEN",
                      "the images were finished long ago and are still not read: the rest is dropped");
  }
  DropTicket();
}

void SampleStream::OnCancel() {
  DropTicket();
}

void SampleStream::CancelRequest() {
  {
    absl::MutexLock lock(&mutex_);
    if (last_) last_ = CancelledStatus();
  }
  DropTicket();
}

void SampleStream::DropTicket() {
  std::unique_ptr<SampleTicket> dropped;
  absl::MutexLock lock(&mutex_);
  broken_ = true;
  pending_.clear();
  previews_.clear();
  dropped = std::move(ticket_);
}

void SampleStream::OnDone() {
  std::unique_ptr<SampleTicket> dropped;
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
    dropped = std::move(ticket_);
  }
  dropped.reset();
  // The engine may still be inside its last event; its reference, or this one, is the last.
  const std::shared_ptr<SampleStream> last_reference = std::move(self_);
}

}  // namespace atl::router
