#include "common/rpc/server.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/listen_probe.h"
#include "common/rpc/open_files.h"
#include "common/rpc/open_streams.h"
#include "fmt/format.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"

namespace atl::rpc {
namespace {

std::string DialableAddress(const std::string& listen, int port) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  const bool wildcard = host == "0.0.0.0" || host == "[::]" || host.empty();
  return fmt::format("{}:{}", wildcard ? "127.0.0.1" : host, port);
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), INT_MAX));
}

void Configure(const ServerLimits& limits, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(limits.max_message_bytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(limits.max_connection_idle));
  if (limits.max_connection_age < absl::InfiniteDuration()) {
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(limits.max_connection_age));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, Milliseconds(limits.connection_grace));
  }
  if (limits.memory_bytes > 0) {
    grpc::ResourceQuota quota("server");
    quota.Resize(limits.memory_bytes);
    builder.SetResourceQuota(quota);
  }
  // Who connects and says nothing is cut off: handshakes of thousands of islands at once wait for the processor for
  // less.
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

absl::Status WritePortFile(const std::string& path, int port) {
  const std::string part = path + ".part";
  {
    std::ofstream file(part, std::ios::trunc);
    file << port << "\n";
    file.close();
    if (file && std::rename(part.c_str(), path.c_str()) == 0) return absl::OkStatus();
  }
  const int error = errno;
  std::remove(part.c_str());
  return MakeError(absl::StatusCode::kUnknown, "FILE_ERROR",
                   fmt::format("cannot write the port file {}: {}", path, std::strerror(error)));
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  ATOLL_RETURN_IF_ERROR(CheckListenAddress(options.listen));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  Configure(options.limits, builder);
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
  // What gRPC would print of an address that is taken is said below.
  gpr_set_log_function([](gpr_log_func_args*) {});
  server->server_ = builder.BuildAndStart();
  gpr_set_log_function(nullptr);
  if (server->server_ == nullptr || port == 0) {
    return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                     fmt::format("cannot listen at {}: the address is taken or not this machine's", options.listen));
  }
  server->port_ = port;
  server->address_ = DialableAddress(options.listen, port);
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
