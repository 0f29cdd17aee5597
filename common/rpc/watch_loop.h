// Keeps a server stream open: reads it to its end, and reopens it with back-off.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace atl::rpc {

// Thread-safe. Owns one thread, joined by the destructor.
class WatchLoop {
 public:
  // Opens the stream with the context, calls `received` for every message before using it, and returns how the stream
  // ended. Runs on the loop's thread.
  using ReadStream = std::function<grpc::Status(grpc::ClientContext* context, const std::function<void()>& received)>;
  struct Options {
    std::string what;       // the watched object, for the log: "models"
    std::string meanwhile;  // the fallback without a stream, for the log
    BackoffLimits backoff{.first = absl::Milliseconds(200), .longest = absl::Seconds(5)};
    // Called on the loop's thread with the first message of a stream, and when a stream broke; may be null.
    std::function<void(bool connected)> on_connection;
  };

  // Starts at once. `clock` must outlive the loop.
  WatchLoop(Options options, ReadStream read, Clock* clock);
  ~WatchLoop();
  WatchLoop(const WatchLoop&) = delete;
  WatchLoop& operator=(const WatchLoop&) = delete;

  // Cancels the stream and opens no other. Does not block.
  void Stop();

 private:
  void Run();
  // Reads one stream to its end. Returns false when the loop stops.
  bool ReadOnce(Backoff* backoff, std::string* last_reason);

  const Options options_;
  const ReadStream read_;
  Clock* const clock_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the open stream, to cancel it
  std::thread thread_;
};

}  // namespace atl::rpc
