// Opens the streams of watches, and counts each for its caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "coordinator/service/call.h"
#include "coordinator/service/stream_writer.h"

namespace atl::coordinator {

// The name under which watches are counted: many routers may share a credential, but rarely a machine.
inline std::string WatcherOf(const ServiceContext& context, const grpc::CallbackServerContext& call) {
  const std::string peer = call.peer();
  return SubjectOf(context, call) + " at " + peer.substr(0, peer.rfind(':'));
}

// Serves a watch and times it. If the caller has too many, the stream ends with that error. `begin` makes the watch,
// which sends through the writer, and returns its ticket; `end` gets the ticket once the stream is over. Both run on
// the core's thread, `end` only after `begin`.
template <typename Message>
grpc::ServerWriteReactor<Message>* ServeWatch(
    const ServiceContext& context, grpc::CallbackServerContext* call, const char* method,
    std::function<int64_t(const std::shared_ptr<StreamWriter<Message>>&)> begin, std::function<void(int64_t)> end) {
  struct Begun {
    std::atomic<bool> posted = false;
    int64_t ticket = 0;  // used on the core's thread only
  };
  const auto begun = std::make_shared<Begun>();
  const std::string watcher = WatcherOf(context, *call);
  const absl::Status opened = context.watches->Open(watcher);
  auto timer = std::make_shared<CallTimer>(context, *call, method);
  const auto writer = StreamWriter<Message>::Create(
      [timer, context, watcher, counted = opened.ok(), begun, end = std::move(end)](const grpc::Status& status) {
        if (counted) context.watches->Close(watcher);
        timer->End(rpc::FromGrpc(status));
        if (begun->posted) context.core_thread->PostEnd([begun, end] { end(begun->ticket); });
      });
  if (!opened.ok()) {
    writer->End(rpc::ToGrpc(opened));
    return writer.get();
  }
  // Set before the post: once `begin` runs, the stream may end.
  begun->posted = true;
  if (!context.core_thread->Post([begun, writer, begin = std::move(begin)] { begun->ticket = begin(writer); })) {
    begun->posted = false;
    writer->End(rpc::ToGrpc(Busy()));
  }
  return writer.get();
}

}  // namespace atl::coordinator
