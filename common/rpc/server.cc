#include "common/rpc/server.h"

#include <chrono>

#include "common/auth/open_streams.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/listen_probe.h"
#include "common/rpc/open_files.h"
#include "fmt/format.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"

namespace atl::rpc {
namespace {

void Configure(const ServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Further calls of a connection wait at their caller.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
  // A connection without a call is closed; callers connect again by themselves.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 30 * 60'000);
  if (options.max_connection_age < absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               static_cast<int>(absl::ToInt64Milliseconds(options.max_connection_age)));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, 10 * 60'000);
  }
  if (options.memory_bytes > 0) {
    grpc::ResourceQuota quota("server");
    quota.Resize(options.memory_bytes);
    builder.SetResourceQuota(quota);
  }
  // Disconnects peers that connect and send nothing. Handshakes of thousands of islands at once wait less than this for
  // the processor.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 20'000);
  // A second process on the same port must fail, not share it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Channels ping every 20 s (channel.cc); the default would answer that with GOAWAY.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  ATOLL_RETURN_IF_ERROR(CheckListenAddress(options.listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  Configure(options, builder);
  RaiseOpenFiles();
  int port = 0;
  builder.AddListeningPort(
      options.listen, options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials(), &port);
  for (const NamedService& service : options.services) builder.RegisterService(service.service);
  if (options.open_streams != nullptr) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(options.open_streams->Interceptors());
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
  }
  if (options.other_calls != nullptr) builder.RegisterCallbackGenericService(options.other_calls);

  std::unique_ptr<Server> server(new Server);
  // The error below replaces gRPC's own messages about an address that is taken.
  gpr_set_log_function([](gpr_log_func_args*) {});
  server->server_ = builder.BuildAndStart();
  gpr_set_log_function(nullptr);
  if (server->server_ == nullptr || port == 0) {
    return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                     fmt::format("cannot listen at {}: the address is taken or not this machine's", options.listen));
  }
  server->port_ = port;
  server->address_ = fmt::format("{}:{}", options.listen.substr(0, options.listen.rfind(':')), port);
  for (const NamedService& service : options.services) server->names_.push_back(service.name);
  server->SetServing(false);
  return server;
}

void Server::SetServing(bool serving) {
  for (const std::string& name : names_) SetServing(name, serving);
}

void Server::SetServing(const std::string& service_name, bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(service_name, serving);
}

void Server::AnnounceEnd() {
  server_->GetHealthCheckService()->SetServingStatus(false);
}

void Server::Shutdown(absl::Duration grace) {
  server_->GetHealthCheckService()->Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
  server_->Wait();
}

Server::~Server() {
  if (server_ != nullptr) Shutdown(absl::ZeroDuration());
}

}  // namespace atl::rpc
