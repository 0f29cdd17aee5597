// Opens the streams of watches, each counted as its caller's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/service/call.h"
#include "coordinator/service/stream_writer.h"

namespace atl::coordinator {

// A stream for `call`: timed, and cut off when nobody reads it. `ended` runs once it is over, on a gRPC thread. Where
// the caller has too many watches the stream ends by itself with that error, and `admitted` says so: nothing is to be
// sent.
template <typename Message>
struct Watch {
  std::shared_ptr<StreamWriter<Message>> writer;
  bool admitted = false;
};

// As whom watches are counted: many routers may share a credential, but hardly a machine.
inline std::string WatcherOf(const ServiceContext& context, const grpc::CallbackServerContext& call) {
  const std::string peer = call.peer();
  return SubjectOf(context, call) + " at " + peer.substr(0, peer.rfind(':'));
}

template <typename Message>
Watch<Message> OpenWatch(const ServiceContext& context, grpc::CallbackServerContext* call, const char* method,
                         std::function<void()> ended) {
  const absl::StatusOr<int64_t> ticket = context.watches->Admit(WatcherOf(context, *call));
  auto timer = std::make_shared<CallTimer>(context, *call, method);
  auto writer = StreamWriter<Message>::Create(call, context.clock,
                                              [timer, watches = context.watches, ticket = ticket.value_or(0),
                                               ended = std::move(ended)](const grpc::Status& status) {
                                                watches->Close(ticket);
                                                timer->End(rpc::FromGrpc(status));
                                                ended();
                                              });
  if (ticket.ok()) {
    context.watches->Open(*ticket, writer);
  } else {
    writer->End(rpc::ToGrpc(ticket.status()));
  }
  return {.writer = std::move(writer), .admitted = ticket.ok()};
}

}  // namespace atl::coordinator
