// The streams that are open at a server with a guard, so that those of callers who were shut out can be cut: the gRPC
// library asks for credentials when a call begins, and streams last for days.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "common/rpc/guard.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"

namespace atl::rpc {

// Thread-safe.
class OpenStreams : public std::enable_shared_from_this<OpenStreams> {
 public:
  using Judge = std::function<absl::Status(const CallStart&)>;

  // Who judges streams when they enter, by the files of that time: a guard may have let them in by those before. Before
  // the first stream. Called from serving threads; must not block.
  void JudgeNew(Judge judge) { judge_ = std::move(judge); }

  // For a server's builder; what it makes keeps this object.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> Interceptors();

  // Cancels the streams whose callers `judge` refuses, and says so in the log. Their ends may run on this thread
  // before it returns. No stream waits while `judge` runs.
  void Cut(const Judge& judge);

  size_t size() const;

 private:
  class Entry;
  class Factory;

  // Where it is still open: another stream may have taken the place of its entry in memory, but not of its start.
  void CutOne(const Entry* entry, const std::shared_ptr<const CallStart>& start, const absl::Status& why);

  Judge judge_;  // null: none
  // Recursive: a stream that is cancelled may end, and leave, within the cancelling call.
  mutable std::recursive_mutex mutex_;
  std::unordered_map<const Entry*, std::shared_ptr<const CallStart>> open_;
};

}  // namespace atl::rpc
