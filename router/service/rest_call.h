// One request for images of the REST facade, as the engine sees it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "router/engine/flight.h"

namespace atl::router {

// A file descriptor that poll finds readable once it was set. Thread-safe.
class WakeUp {
 public:
  WakeUp();
  ~WakeUp();
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  void Set();
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// Gathers a request's images until its end. Thread-safe.
class RestCall final : public SampleEvents {
 public:
  void OnQueued(int64_t, const std::string&) override {}
  void OnProgress(int32_t, int32_t) override {}
  void OnImage(SampledImage image) override;
  void OnDone(const SampleReport& report) override;
  void OnError(const absl::Status& status) override;

  // Waits for the request's end. Sooner CANCELLED when the other side of `socket` (-1: not known) hangs up, and
  // UNAVAILABLE (DRAINING) when `stop` is set.
  absl::Status Await(int socket, const WakeUp& stop);

  // After Await was OK.
  std::vector<SampledImage> TakeImages();
  SampleReport report();

 private:
  absl::Mutex mutex_;
  std::vector<SampledImage> images_ ABSL_GUARDED_BY(mutex_);
  SampleReport report_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  WakeUp over_;
};

// The descriptor of this process's socket whose other end is `address`:`port`, or -1. CivetWeb keeps its sockets to
// itself, and a caller that hangs up while it waits is seen nowhere else. Valid for as long as the connection is held
// open.
int FindSocket(const std::string& address, int port);

// Ends what is sent and discards what comes, until the other side closes or `time` is over: closing a socket with
// unread bytes would take back what was sent last. Does nothing for -1.
void DrainSocket(int socket, absl::Duration time);

}  // namespace atl::router
