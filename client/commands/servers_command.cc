#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands/commands.h"
#include "client/server_text.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using namespace atlpb::serving::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

// The registry as it is now: the first message of the watch.
absl::StatusOr<WatchServersResponse> GetServers(const Session& session) {
  ATOLL_ASSIGN_OR_RETURN(const Peer<ServingService> peer, ConnectCoordinator<ServingService>(session));
  WatchServersResponse response;
  ATOLL_RETURN_IF_ERROR(ExplainCall(RetryUnavailable([&] {
                                      grpc::ClientContext context;
                                      rpc::SetTimeout(&context, session.timeout());
                                      const auto reader = peer.stub->WatchServers(&context, WatchServersRequest());
                                      if (!reader->Read(&response)) return rpc::FromGrpc(reader->Finish());
                                      context.TryCancel();
                                      (void)reader->Finish();  // CANCELLED, by the line above
                                      return absl::OkStatus();
                                    }),
                                    peer.what, session.timeout()));
  return response;
}

absl::Status List(const Session& session) {
  ATOLL_ASSIGN_OR_RETURN(const WatchServersResponse response, GetServers(session));
  *session.out << (session.format == OutputFormat::kJson ? ToJson(response) : DescribeServers(response, session.width));
  return absl::OkStatus();
}

absl::Status Get(const Session& session, const std::string& server_id) {
  ATOLL_ASSIGN_OR_RETURN(const WatchServersResponse response, GetServers(session));
  for (const ExpertServer& server : response.servers()) {
    if (server.server_id() != server_id) continue;
    *session.out << (session.format == OutputFormat::kJson ? ToJson(server) : DescribeServer(server, session.width));
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kNotFound, "UNKNOWN_EXPERT_SERVER",
                   fmt::format("expected one of the {} expert servers that the coordinator knows, found '{}'",
                               response.servers_size(), server_id));
}

}  // namespace

void AddServersCommand(CLI::App* app, Session* session) {
  auto server_id = std::make_shared<std::string>();
  CLI::App* servers = app->add_subcommand("servers", "Lists expert servers and what each hosts");
  servers->require_subcommand(1);
  servers->add_subcommand("list", "Every server that the coordinator knows, and what has room on none of them")
      ->callback([=] { session->run = [=] { return List(*session); }; });
  CLI::App* get = servers->add_subcommand("get", "One server with its networks");
  get->add_option("SERVER", *server_id, "Its name, as listed by servers list")->required();
  get->callback([=] { session->run = [=] { return Get(*session, *server_id); }; });
  servers->footer(R"(
An expert server is `atoll-worker --serve --coordinator HOST:PORT`; `atoll up --expert-servers 2` starts some here.

Examples:
  atoll servers list
  atoll servers get node-a:7201
)");
}

}  // namespace atl::client
