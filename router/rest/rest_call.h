// One request for images of the REST facade, as the engine sees it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "common/http/http_server.h"
#include "router/engine/flight.h"
#include "router/policy/request.h"

namespace atl::router {

// An answer in OpenAI's form, with Retry-After where the error has a delay.
http::HttpResponse ErrorReply(const absl::Status& status);
// The same under another code than the status has of itself.
http::HttpResponse ErrorReply(int code, const absl::Status& status);

// Gathers a request's images until its end, or streams them as they come: of previews each image's newest alone. The
// engine's events only note what is new; bodies are composed on handler threads. Thread-safe.
class RestCall final : public SampleEvents, public std::enable_shared_from_this<RestCall> {
 public:
  RestCall(std::shared_ptr<http::HttpExchange> exchange, SamplerInfo info, ImageFormat format, bool stream,
           Clock* clock);

  // Once, when the engine has taken the request: errors before are answered without a stream.
  void Begin();

  void OnQueued(int64_t, const std::string&) override {}
  void OnProgress(int32_t, int32_t) override {}
  void OnPreviews(std::vector<SampledImage> previews) override;
  void OnImage(SampledImage image) override;
  void OnDone(const SampleReport& report) override;
  // The first error ends it, also after OnDone where the images were not sent yet.
  void OnError(const absl::Status& status) override;
  void OnNotTaken() override;

 private:
  // Has what is new sent, unless there is nothing, or something is being sent.
  void Wake();
  // On a handler thread.
  void SendNews();
  void Sent();
  std::string EventsOf(const std::map<int32_t, SampledImage>& previews, const std::vector<SampledImage>& images);

  const std::shared_ptr<http::HttpExchange> exchange_;
  const SamplerInfo info_;
  const ImageFormat format_;
  const bool stream_;
  Clock* const clock_;
  std::map<int32_t, int32_t> partials_;  // previews sent, by image; of the thread that sends

  absl::Mutex mutex_;
  bool sending_ ABSL_GUARDED_BY(mutex_) = true;                       // until Begin, too
  std::map<int32_t, SampledImage> previews_ ABSL_GUARDED_BY(mutex_);  // by the image's index
  std::vector<SampledImage> images_ ABSL_GUARDED_BY(mutex_);
  SampleReport report_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);  // with which it ends
};

}  // namespace atl::router
