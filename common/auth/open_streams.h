// The open streams of a server with a guard. gRPC checks credentials only when a call begins, and streams last for
// days, so streams of revoked callers must be cut.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "common/auth/guard.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"

namespace atl::rpc {

// Thread-safe.
class OpenStreams : public std::enable_shared_from_this<OpenStreams> {
 public:
  using Judge = std::function<absl::Status(const CallStart&)>;

  // For a server's builder; what it makes keeps this object.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

  // Cancels the streams whose callers `judge` refuses, and says so in the log. Their ends may run on this thread
  // before it returns. No stream waits while `judge` runs.
  void Cut(const Judge& judge);

  size_t size() const;

 private:
  class Entry;
  class Factory;

  // Recursive: a stream that is cancelled may end, and leave, within the cancelling call.
  mutable std::recursive_mutex mutex_;
  std::unordered_map<const Entry*, std::shared_ptr<const CallStart>> open_;
};

}  // namespace atl::rpc
