#include "coordinator/service/serving_service.h"

#include <memory>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/wire/network_wire.h"
#include "common/wire/status_proto.h"
#include "common/wire/time_wire.h"
#include "coordinator/service/watch.h"
#include "fmt/format.h"

namespace atl::coordinator {
namespace {

namespace serving_pb = atlpb::serving::v1;
namespace expert_pb = atlpb::expert::v1;

absl::StatusOr<serving::ExpertServer> ServerFromProto(const serving_pb::ExpertServer& proto) {
  serving::ExpertServer server{.server_id = proto.server_id(),
                               .incarnation = proto.incarnation(),
                               .address = proto.address(),
                               .fingerprint = proto.hosting().fingerprint(),
                               .slots = proto.hosting().slots(),
                               .memory_bytes = proto.hosting().memory_bytes()};
  for (const expert_pb::HostedNetwork& hosted : proto.hosting().networks()) {
    const std::string field = fmt::format("server.hosting.networks[{}]", server.networks.size());
    ATOLL_ASSIGN_OR_RETURN(server.networks.emplace_back(), wire::FromProto(field, hosted));
  }
  return server;
}

void ToProto(const serving::ExpertServer& server, serving_pb::ExpertServer* proto) {
  proto->set_server_id(server.server_id);
  proto->set_incarnation(server.incarnation);
  proto->set_address(server.address);
  expert_pb::ListNetworksResponse* hosting = proto->mutable_hosting();
  hosting->set_fingerprint(server.fingerprint);
  hosting->set_slots(server.slots);
  hosting->set_memory_bytes(server.memory_bytes);
  for (const serving::HostedNetwork& hosted : server.networks) *hosting->add_networks() = wire::ToProto(hosted);
}

serving_pb::WatchServersResponse ToProto(const ServersView& view) {
  serving_pb::WatchServersResponse response;
  for (const serving::ExpertServer& server : view.servers) {
    serving_pb::ExpertServer* proto = response.add_servers();
    ToProto(server, proto);
    const auto assigned = view.plan.assigned.find(server.server_id);
    if (assigned == view.plan.assigned.end()) continue;
    for (const NetworkId& network : assigned->second) *proto->add_assigned() = wire::ToProto(network);
  }
  for (const auto& [version, shortage] : view.plan.shortages) {
    serving_pb::VersionShortage* proto = response.add_shortages();
    proto->set_model(version.first);
    proto->set_version(version.second);
    for (const int32_t network : shortage.networks) proto->add_networks(network);
    proto->set_needed_bytes(shortage.needed_bytes);
    proto->set_lacking_bytes(shortage.lacking_bytes);
    *proto->mutable_error() = rpc::ToProto(shortage.error);
  }
  response.set_lacking_bytes(view.plan.lacking_bytes);
  response.set_over_memory_bytes(view.plan.over_memory_bytes);
  return response;
}

absl::StatusOr<serving::UseState> StateFromProto(const std::string& field, serving_pb::VersionUse::State state) {
  switch (state) {
    case serving_pb::VersionUse::STATE_LOADING:
      return serving::UseState::kLoading;
    case serving_pb::VersionUse::STATE_SERVING:
      return serving::UseState::kServing;
    case serving_pb::VersionUse::STATE_DRAINING:
      return serving::UseState::kDraining;
    default:
      return FieldError(field, "INVALID_ROUTING_REPORT",
                        fmt::format("expected loading, serving or draining, found {}", static_cast<int>(state)));
  }
}

absl::StatusOr<serving::RoutingReport> ReportFromProto(const serving_pb::ReportRoutingRequest& request) {
  serving::RoutingReport report{.router_id = request.router_id(),
                                .needs_router_networks = request.needs_router_networks()};
  for (const serving_pb::VersionUse& proto : request.uses()) {
    const std::string field = fmt::format("uses[{}].state", report.uses.size());
    ATOLL_ASSIGN_OR_RETURN(const serving::UseState state, StateFromProto(field, proto.state()));
    report.uses.push_back({.model = proto.model(),
                           .version = proto.version(),
                           .state = state,
                           .pinned = proto.pinned(),
                           .requests = proto.requests(),
                           .chosen = {proto.chosen().begin(), proto.chosen().end()}});
  }
  return report;
}

// As of serving::ExpertServer::owner, for the server of whom the caller speaks.
absl::StatusOr<std::string> OwnerOf(const ServiceContext& context, const grpc::CallbackServerContext& call,
                                    const std::string& server_id) {
  ATOLL_ASSIGN_OR_RETURN(const rpc::Principal caller, CallerOf(context, call));
  ATOLL_ASSIGN_OR_RETURN(const bool named, rpc::IsNamedForExpertServer(caller, server_id));
  return named ? "" : caller.subject;
}

}  // namespace

grpc::ServerUnaryReactor* ServingServiceImpl::Heartbeat(grpc::CallbackServerContext* call,
                                                        const serving_pb::HeartbeatRequest* request,
                                                        serving_pb::HeartbeatResponse* response) {
  const absl::StatusOr<std::string> owner = OwnerOf(context_, *call, request->server().server_id());
  return Serve(context_, call, "ExpertHeartbeat",
               [registry = registry_, owner, request, response](Core&) -> absl::Status {
                 ATOLL_ASSIGN_OR_RETURN(serving::ExpertServer server, ServerFromProto(request->server()));
                 ATOLL_ASSIGN_OR_RETURN(server.owner, owner);
                 ATOLL_ASSIGN_OR_RETURN(const ServerHeartbeatAnswer answer,
                                        registry->Heartbeat(server, request->sequence(), request->leaving()));
                 for (const AssignedNetwork& assigned : answer.assigned) {
                   serving_pb::AssignedNetwork* proto = response->add_assigned();
                   *proto->mutable_network() = wire::ToProto(assigned.network);
                   proto->set_uri(assigned.uri);
                 }
                 *response->mutable_heartbeat_interval() = wire::ToProto(answer.interval);
                 response->set_undecided(answer.undecided);
                 return absl::OkStatus();
               });
}

grpc::ServerUnaryReactor* ServingServiceImpl::ReportRouting(grpc::CallbackServerContext* call,
                                                            const serving_pb::ReportRoutingRequest* request,
                                                            serving_pb::ReportRoutingResponse* response) {
  return Serve(context_, call, "ReportRouting", [registry = registry_, request, response](Core&) -> absl::Status {
    ATOLL_ASSIGN_OR_RETURN(const serving::RoutingReport report, ReportFromProto(*request));
    ATOLL_ASSIGN_OR_RETURN(const absl::Duration interval, registry->ReportRouting(report));
    *response->mutable_report_interval() = wire::ToProto(interval);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<serving_pb::WatchServersResponse>* ServingServiceImpl::WatchServers(
    grpc::CallbackServerContext* call, const serving_pb::WatchServersRequest*) {
  ExpertRegistry* const registry = registry_;
  const auto begin = [registry](const std::shared_ptr<StreamWriter<serving_pb::WatchServersResponse>>& writer) {
    return registry->WatchServers([writer](const absl::StatusOr<std::shared_ptr<const ServersView>>& view, bool last) {
      if (view.ok()) writer->Send("servers", ToProto(**view));
      if (last) writer->End(rpc::ToGrpc(view.status()));
    });
  };
  return ServeWatch<serving_pb::WatchServersResponse>(context_, call, "WatchServers", begin,
                                                      [registry](int64_t ticket) { registry->CancelWatch(ticket); });
}

}  // namespace atl::coordinator
