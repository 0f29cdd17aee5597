// One request for images of the REST facade, as the engine sees it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "router/engine/flight.h"

namespace atl::router {

// A file descriptor that poll finds readable once it was set; -1 where this process had none left. Thread-safe.
class WakeUp {
 public:
  WakeUp();
  ~WakeUp();
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  void Set();
  void Clear();
  int descriptor() const { return descriptor_; }

 private:
  const int descriptor_;
};

// Gathers a request's images until its end, or hands them out as they come. Thread-safe.
class RestCall final : public SampleEvents {
 public:
  // What has come since the last time; each image's newest preview alone.
  struct News {
    std::vector<SampledImage> previews;
    std::vector<SampledImage> images;
    bool over = false;
  };

  void OnQueued(int64_t, const std::string&) override {}
  void OnProgress(int32_t, int32_t) override {}
  void OnPreviews(std::vector<SampledImage> previews) override;
  void OnImage(SampledImage image) override;
  void OnDone(const SampleReport& report) override;
  void OnError(const absl::Status& status) override;
  void OnNotTaken() override;

  // Waits for the request's end. Sooner CANCELLED when the other side of `socket` (-1: not known) hangs up, and
  // UNAVAILABLE (DRAINING) when `stop` is set.
  absl::Status Await(int socket, const WakeUp& stop);
  // Waits until there is something to tell. Errors of Await, and those with which the request ended; DEADLINE_EXCEEDED
  // (RESULTS_NOT_TAKEN) when what came before was taken too slowly.
  absl::StatusOr<News> AwaitNews(int socket, const WakeUp& stop);

  // After Await was OK.
  std::vector<SampledImage> TakeImages();
  SampleReport report();

 private:
  // Until `due`, of state under mutex_, holds.
  absl::Status AwaitDue(int socket, const WakeUp& stop, bool (RestCall::*due)());
  bool IsOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return status_.has_value(); }
  bool HasNews() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return status_.has_value() || !images_.empty() || !previews_.empty();
  }

  absl::Mutex mutex_;
  std::map<int32_t, SampledImage> previews_ ABSL_GUARDED_BY(mutex_);  // by the image's index
  std::vector<SampledImage> images_ ABSL_GUARDED_BY(mutex_);
  SampleReport report_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
  WakeUp changed_;
};

// The descriptor of this process's socket at `server_port` whose other end is `address`:`port`, or -1. CivetWeb keeps
// its sockets to itself, and a caller that hangs up while it waits is seen nowhere else. Valid for as long as the
// connection is held open. The other end alone does not tell: two connections may come from one port of one machine, as
// a caller's to the TLS front and the front's own.
int FindSocket(const std::string& address, int port, int server_port);

// Ends what is sent and discards what comes, until the other side closes or `time` is over: closing a socket with
// unread bytes would take back what was sent last. Does nothing for -1.
void DrainSocket(int socket, absl::Duration time);

}  // namespace atl::router
