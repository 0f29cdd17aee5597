#include "router/rest/rest_call.h"

#include <utility>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "router/policy/admission.h"
#include "router/rest/rest_wire.h"

namespace atl::router {
namespace {

constexpr char kJson[] = "application/json";

}  // namespace

http::HttpResponse ErrorReply(const absl::Status& status) {
  return ErrorReply(HttpCode(status.code()), status);
}

http::HttpResponse ErrorReply(int code, const absl::Status& status) {
  http::HttpResponse reply{.code = code, .body = ErrorBody(status), .type = kJson};
  const absl::Duration delay = RetryDelayOf(status);
  if (delay > absl::ZeroDuration()) {
    const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(delay, absl::Seconds(1)));
    reply.headers.emplace_back("Retry-After", fmt::format("{}", seconds));
  }
  return reply;
}

RestCall::RestCall(std::shared_ptr<http::HttpExchange> exchange, SamplerInfo info, ImageFormat format, bool stream,
                   Clock* clock)
    : exchange_(std::move(exchange)), info_(std::move(info)), format_(format), stream_(stream), clock_(clock) {}

void RestCall::Begin() {
  if (!stream_) return Sent();
  exchange_->StartStream("text/event-stream", [self = shared_from_this()] { self->Sent(); });
}

void RestCall::OnPreviews(std::vector<SampledImage> previews) {
  {
    absl::MutexLock lock(&mutex_);
    for (SampledImage& preview : previews) {
      const int32_t index = preview.index;
      previews_[index] = std::move(preview);
    }
  }
  Wake();
}

void RestCall::OnImage(SampledImage image) {
  {
    absl::MutexLock lock(&mutex_);
    previews_.erase(image.index);
    images_.push_back(std::move(image));
  }
  Wake();
}

void RestCall::OnDone(const SampleReport& report) {
  {
    absl::MutexLock lock(&mutex_);
    report_ = report;
    if (!status_) status_ = absl::OkStatus();
  }
  Wake();
}

void RestCall::OnError(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!status_ || status_->ok()) status_ = status;
  }
  Wake();
}

void RestCall::OnNotTaken() {
  OnError(MakeError(absl::StatusCode::kDeadlineExceeded, "RESULTS_NOT_TAKEN",
                    "the images were finished long ago and are still not read: the rest is dropped"));
}

void RestCall::Wake() {
  {
    absl::MutexLock lock(&mutex_);
    const bool news = status_ || (stream_ && (!images_.empty() || !previews_.empty()));
    if (sending_ || !news) return;
    sending_ = true;
  }
  exchange_->Run([self = shared_from_this()] { self->SendNews(); });
}

void RestCall::Sent() {
  {
    absl::MutexLock lock(&mutex_);
    sending_ = false;
  }
  Wake();
}

void RestCall::SendNews() {
  std::map<int32_t, SampledImage> previews;
  std::vector<SampledImage> images;
  SampleReport report;
  std::optional<absl::Status> status;
  {
    // Behind the end sending_ stays set.
    absl::MutexLock lock(&mutex_);
    previews.swap(previews_);
    images.swap(images_);
    report = report_;
    status = status_;
  }
  if (!stream_) {
    if (!status->ok()) return exchange_->Answer(ErrorReply(*status));
    return exchange_->Answer(
        {.body = ImagesBody(clock_->Now(), info_, format_, std::move(images), report), .type = kJson});
  }
  if (status && !status->ok()) return exchange_->EndStream(ErrorEvent(*status));
  std::string events = EventsOf(previews, images);
  if (status) return exchange_->EndStream(std::move(events) + DoneEvent(info_, report));
  exchange_->Send(std::move(events), [self = shared_from_this()] { self->Sent(); });
}

std::string RestCall::EventsOf(const std::map<int32_t, SampledImage>& previews,
                               const std::vector<SampledImage>& images) {
  const absl::Time now = clock_->Now();
  std::string events;
  for (const auto& [index, preview] : previews) {
    events += PartialImageEvent(now, info_, format_, partials_[index]++, preview);
  }
  for (const SampledImage& image : images) events += CompletedImageEvent(now, info_, format_, image);
  return events;
}

}  // namespace atl::router
