#include "worker/island/rank_stream.h"

#include <utility>

#include "common/wire/status.h"

namespace atl::worker {

using atlpb::island::v1::JoinRequest;
using atlpb::island::v1::JoinResponse;

RankStream::RankStream(grpc::CallbackServerContext* context, Events events)
    : context_(context), events_(std::move(events)) {}

std::shared_ptr<RankStream> RankStream::Open(grpc::CallbackServerContext* context, Events events) {
  std::shared_ptr<RankStream> stream(new RankStream(context, std::move(events)));
  stream->self_ = stream;
  stream->StartRead(&stream->incoming_);
  return stream;
}

void RankStream::Send(JoinResponse message) {
  absl::MutexLock lock(&mutex_);
  if (closing_) return;
  outgoing_.push_back(std::move(message));
  WriteNext();
}

void RankStream::Close(const absl::Status& status, bool at_once) {
  absl::MutexLock lock(&mutex_);
  if (finished_) return;
  if (!closing_) {
    closing_ = true;
    final_ = status;
  }
  if (at_once && writing_) context_->TryCancel();
  if (at_once) outgoing_.clear();
  if (!writing_ && outgoing_.empty()) FinishOnce();
}

void RankStream::WriteNext() {
  if (writing_ || finished_ || outgoing_.empty()) return;
  writing_ = true;
  in_flight_ = std::move(outgoing_.front());
  outgoing_.pop_front();
  StartWrite(&in_flight_);
}

void RankStream::FinishOnce() {
  if (finished_) return;
  finished_ = true;
  Finish(rpc::ToGrpc(final_));
}

void RankStream::OnReadDone(bool ok) {
  if (ok) {
    JoinRequest message;
    message.Swap(&incoming_);
    events_.received(shared_from_this(), std::move(message));
    StartRead(&incoming_);
    return;
  }
  SayClosed();
  Close(absl::OkStatus(), /*at_once=*/false);
}

void RankStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  if (!ok) outgoing_.clear();
  WriteNext();
  if (closing_ && !writing_) FinishOnce();
}

void RankStream::OnCancel() {
  SayClosed();
  Close(absl::CancelledError("the rank went away"), /*at_once=*/true);
}

void RankStream::SayClosed() {
  {
    absl::MutexLock lock(&mutex_);
    if (said_closed_) return;
    said_closed_ = true;
  }
  events_.closed(shared_from_this());
}

void RankStream::OnDone() {
  SayClosed();
  const std::shared_ptr<RankStream> last = std::move(self_);
}

}  // namespace atl::worker
