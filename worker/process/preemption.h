// Asks a cloud's metadata server, again and again, whether the machine is to be taken away.
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
  // Unset: whichever answers first.
  std::optional<Cloud> cloud;
  std::string metadata_url = "http://169.254.169.254";  // all three clouds'
  absl::Duration interval = absl::Seconds(2);
  absl::Duration timeout = absl::Seconds(1);  // of one request
};

// By its name in flags; unset for any other one ("auto").
std::optional<Cloud> CloudNamed(std::string_view name);

// Asks `url` over HTTP, without proxies and redirects; at most 64 KiB of the answer count. For one thread.
AskMetadata AskOverHttp(const std::string& url, absl::Duration timeout);

// Owns one thread, joined by the destructor within one request's timeout.
class PreemptionWatch {
 public:
  // `noticed` is called on the thread, once, with the first notice; nothing is asked after it. `clock` must outlive it.
  PreemptionWatch(PreemptionOptions options, Clock* clock, std::function<void(const SpotNotice&)> noticed);
  ~PreemptionWatch();
  PreemptionWatch(const PreemptionWatch&) = delete;
  PreemptionWatch& operator=(const PreemptionWatch&) = delete;

 private:
  void Loop();
  bool Closing();
  // Finds out whose metadata server answers.
  absl::Status FindCloud();
  absl::StatusOr<NoticeReading> ReadOnce();
  // Says so in the log when it is another text than the last one.
  void Remark(const std::string& text);

  const PreemptionOptions options_;
  Clock* const clock_;
  const std::function<void(const SpotNotice&)> noticed_;
  const AskMetadata ask_;
  std::optional<NoticeReader> reader_;  // the thread's
  std::string remark_;                  // the thread's

  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::worker
