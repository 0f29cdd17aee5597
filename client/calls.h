// Calls to the services: deadlines, retries, errors that name the peer, and protos as JSON.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/client_context.h"

namespace atl::client {

// The service that a stub talks to, for messages.
template <typename Service>
struct Peer {
  std::unique_ptr<typename Service::Stub> stub;
  std::string what;  // "the coordinator at 127.0.0.1:4000"
};

template <typename Service>
absl::StatusOr<Peer<Service>> ConnectCoordinator(const Session& session) {
  absl::StatusOr<std::string> address = session.CoordinatorAddress();
  if (!address.ok()) return address.status();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = session.CoordinatorChannel();
  if (!channel.ok()) return channel.status();
  return Peer<Service>{Service::NewStub(*channel), "the coordinator at " + *address};
}

template <typename Service>
absl::StatusOr<Peer<Service>> ConnectRouter(const Session& session) {
  absl::StatusOr<std::string> address = session.RouterAddress();
  if (!address.ok()) return address.status();
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = session.RouterChannel();
  if (!channel.ok()) return channel.status();
  return Peer<Service>{Service::NewStub(*channel), "the router at " + *address};
}

// Explains the error of a call that had `timeout`: names an unreachable peer and says what to do.
absl::Status ExplainCall(const absl::Status& status, const std::string& what, absl::Duration timeout);

// Runs `attempt` up to three times within about two seconds while it returns UNAVAILABLE. For idempotent calls only.
absl::Status RetryUnavailable(const std::function<absl::Status()>& attempt);

// Makes one idempotent unary call: `method` is a member of the stub.
template <typename Service, typename Request, typename Response>
absl::Status Call(const Session& session, const Peer<Service>& peer,
                  grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response* response) {
  return ExplainCall(RetryUnavailable([&] {
                       grpc::ClientContext context;
                       rpc::SetTimeout(&context, session.timeout());
                       return rpc::FromGrpc((peer.stub.get()->*method)(&context, request, response));
                     }),
                     peer.what, session.timeout());
}

// Returns the coordinator's answer to one such call.
template <typename Service, typename Request, typename Response>
absl::StatusOr<Response> CallCoordinator(const Session& session,
                                         grpc::Status (Service::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                               Response*),
                                         const Request& request) {
  const absl::StatusOr<Peer<Service>> peer = ConnectCoordinator<Service>(session);
  if (!peer.ok()) return peer.status();
  Response response;
  const absl::Status status = Call(session, *peer, method, request, &response);
  if (!status.ok()) return status;
  return response;
}

// Writes the proto's own field names and every field.
std::string ToJson(const google::protobuf::Message& message);

// Returns a random UUID (version 4), for request ids.
std::string NewRequestId();

}  // namespace atl::client
