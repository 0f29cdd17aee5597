// Polls a cloud's metadata server for a notice that the machine will be taken away.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/process/spot_notices.h"

namespace atl::worker {

struct PreemptionOptions {
  // Unset: the cloud that answers first.
  std::optional<Cloud> cloud;
  std::string metadata_url = "http://169.254.169.254";  // the same in all three clouds
  absl::Duration interval = absl::Seconds(2);
  absl::Duration timeout = absl::Seconds(1);  // of one request
};

// Returns the cloud of this name in flags; unset for any other name ("auto").
std::optional<Cloud> CloudNamed(std::string_view name);

// Requests `url` over HTTP, without proxies and redirects; reads at most 64 KiB of the answer. For one thread.
AskMetadata AskOverHttp(const std::string& url, absl::Duration timeout);

// Owns one thread, joined by the destructor within one request's timeout.
class PreemptionWatch {
 public:
  // `noticed` is called on the thread, once, with the first notice; polling then ends. `clock` must outlive it.
  PreemptionWatch(PreemptionOptions options, Clock* clock, std::function<void(const SpotNotice&)> noticed);
  ~PreemptionWatch();
  PreemptionWatch(const PreemptionWatch&) = delete;
  PreemptionWatch& operator=(const PreemptionWatch&) = delete;

 private:
  void Loop();
  bool Closing();
  // Determines the cloud whose metadata server answers.
  absl::Status FindCloud();
  absl::StatusOr<NoticeReading> ReadOnce();
  // Logs `text` if it differs from the last one.
  void Remark(const std::string& text);

  const PreemptionOptions options_;
  Clock* const clock_;
  const std::function<void(const SpotNotice&)> noticed_;
  const AskMetadata ask_;
  std::optional<NoticeReader> reader_;  // used by the thread only
  std::string remark_;                  // used by the thread only

  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::worker
