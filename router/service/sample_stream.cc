#include "router/service/sample_stream.h"

#include "router/service/sample_wire.h"

namespace atl::router {

using atlpb::sample::v1::SampleResponse;

std::shared_ptr<SampleStream> SampleStream::Create() {
  std::shared_ptr<SampleStream> stream(new SampleStream);
  stream->self_ = stream;
  return stream;
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
  Push(std::move(event));
}

void SampleStream::OnProgress(int32_t step, int32_t total_steps) {
  SampleResponse event;
  event.mutable_progress()->set_step(step);
  event.mutable_progress()->set_total_steps(total_steps);
  Push(std::move(event));
}

void SampleStream::OnImage(SampledImage image) {
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
    last_ = status;
  }
  Pump();
}

void SampleStream::Pump() {
  // gRPC is called outside the lock. Being busy keeps the call alive: it cannot be over before this write or finish is.
  std::optional<absl::Status> finish;
  {
    absl::MutexLock lock(&mutex_);
    if (busy_) return;
    if (!pending_.empty()) {
      current_ = std::move(pending_.front());
      pending_.pop_front();
    } else if (last_) {
      finish = last_;
    } else {
      return;
    }
    busy_ = true;
  }
  if (finish) {
    Finish(ToGrpcWithRetry(*finish));
  } else {
    StartWrite(&current_);
  }
}

void SampleStream::OnWriteDone(bool ok) {
  if (!ok) DropTicket();
  {
    absl::MutexLock lock(&mutex_);
    busy_ = false;
  }
  Pump();
}

void SampleStream::OnCancel() {
  DropTicket();
}

void SampleStream::DropTicket() {
  std::unique_ptr<SampleTicket> dropped;
  absl::MutexLock lock(&mutex_);
  broken_ = true;
  pending_.clear();
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
