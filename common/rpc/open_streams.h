// The streams that are open at a server with a guard, so that those of callers who were shut out can be cut: the gRPC
// library asks for credentials when a call begins, and streams last for days.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"

namespace atl::rpc {

// Thread-safe.
class OpenStreams : public std::enable_shared_from_this<OpenStreams> {
 public:
  // What a stream began with.
  struct Caller {
    std::string method;  // "/package.Service/Method"
    std::string bearer;  // token; "" without one
    std::vector<std::string> certificate_names;
    absl::Time began;
  };

  // For a server's builder; what it makes keeps this object.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

  // Cancels the streams whose callers `judge` refuses, and says so in the log. Their ends may run on this thread
  // before it returns.
  void Cut(const std::function<absl::Status(const Caller&)>& judge);

  size_t size() const;

 private:
  class Entry;
  class Factory;

  // Recursive: a stream that is cancelled may end, and leave, within the cancelling call.
  mutable std::recursive_mutex mutex_;
  std::unordered_map<const Entry*, Caller> open_;
};

}  // namespace atl::rpc
