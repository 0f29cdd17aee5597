// One image request of the REST facade, as a receiver of the engine's events.
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

// Returns an answer in OpenAI's form, with Retry-After if the error has a delay.
http::HttpResponse ErrorReply(const absl::Status& status);
// The same with another code than the status implies.
http::HttpResponse ErrorReply(int code, const absl::Status& status);

// Gathers a request's images until its end, or streams them as they come; of each image's previews only the newest. The
// engine's events only record the changes; handler threads compose the bodies. Thread-safe.
class RestCall final : public SampleEvents, public std::enable_shared_from_this<RestCall> {
 public:
  RestCall(std::shared_ptr<http::HttpExchange> exchange, SamplerInfo info, ImageFormat format, bool stream,
           Clock* clock);

  // Call once, when the engine has accepted the request: earlier errors are answered without a stream.
  void Begin();

  void OnQueued(int64_t, const std::string&) override {}
  void OnProgress(int32_t, int32_t) override {}
  void OnPreviews(std::vector<SampledImage> previews) override;
  void OnImage(SampledImage image) override;
  void OnDone(const SampleReport& report) override;
  // The first error ends the request, also after OnDone if the images were not sent yet.
  void OnError(const absl::Status& status) override;
  void OnNotTaken() override;

 private:
  // Schedules a send of the changes, unless there are none or a send is running.
  void Wake();
  // Runs on a handler thread.
  void SendNews();
  void Sent();
  std::string EventsOf(const std::map<int32_t, SampledImage>& previews, const std::vector<SampledImage>& images);

  const std::shared_ptr<http::HttpExchange> exchange_;
  const SamplerInfo info_;
  const ImageFormat format_;
  const bool stream_;
  Clock* const clock_;
  std::map<int32_t, int32_t> partials_;  // previews sent, by image; used by the sending thread

  absl::Mutex mutex_;
  bool sending_ ABSL_GUARDED_BY(mutex_) = true;                       // until Begin, too
  std::map<int32_t, SampledImage> previews_ ABSL_GUARDED_BY(mutex_);  // by the image's index
  std::vector<SampledImage> images_ ABSL_GUARDED_BY(mutex_);
  SampleReport report_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);  // the final status
};

}  // namespace atl::router
