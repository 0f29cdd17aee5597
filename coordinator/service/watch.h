// Opens the streams of watches, each counted as its caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/service/call.h"
#include "coordinator/service/stream_writer.h"

namespace atl::coordinator {

// As whom watches are counted: many routers may share a credential, but hardly a machine.
inline std::string WatcherOf(const ServiceContext& context, const grpc::CallbackServerContext& call) {
  const std::string peer = call.peer();
  return SubjectOf(context, call) + " at " + peer.substr(0, peer.rfind(':'));
}

// Serves a watch: timed, and cut off when nobody reads it. Where the caller has too many it ends by itself with that
// error. `begin` makes the watch, which sends by the writer, and returns its ticket; `end` gets that once the stream is
// over. Both run on the core's thread, `end` not without `begin`.
template <typename Message>
grpc::ServerWriteReactor<Message>* ServeWatch(
    const ServiceContext& context, grpc::CallbackServerContext* call, const char* method,
    std::function<int64_t(const std::shared_ptr<StreamWriter<Message>>&)> begin, std::function<void(int64_t)> end) {
  struct Begun {
    std::atomic<bool> posted = false;
    int64_t ticket = 0;  // used on the core's thread only
  };
  const auto begun = std::make_shared<Begun>();
  const absl::StatusOr<int64_t> place = context.watches->Admit(WatcherOf(context, *call));
  auto timer = std::make_shared<CallTimer>(context, *call, method);
  const auto writer = StreamWriter<Message>::Create(
      call, context.clock,
      [timer, watches = context.watches, core_thread = context.core_thread, place = place.value_or(0), begun,
       end = std::move(end)](const grpc::Status& status) {
        watches->Close(place);
        timer->End(rpc::FromGrpc(status));
        if (begun->posted) core_thread->PostEnd([begun, end] { end(begun->ticket); });
      });
  if (!place.ok()) {
    writer->End(rpc::ToGrpc(place.status()));
    return writer.get();
  }
  context.watches->Open(*place, writer);
  // Said before it is: once it runs the stream may end.
  begun->posted = true;
  if (!context.core_thread->Post([begun, writer, begin = std::move(begin)] { begun->ticket = begin(writer); })) {
    begun->posted = false;
    writer->End(rpc::ToGrpc(Busy()));
  }
  return writer.get();
}

}  // namespace atl::coordinator
