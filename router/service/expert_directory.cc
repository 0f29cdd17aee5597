#include "router/service/expert_directory.h"

#include <vector>

#include "common/wire/network_wire.h"
#include "grpcpp/channel.h"

namespace atl::router {
namespace {

namespace pb = atlpb::serving::v1;
using atlpb::expert::v1::HostedNetwork;

// What it is to host, and neither has nor could not load.
std::vector<NetworkId> LoadingOf(const pb::ExpertServer& server) {
  std::vector<NetworkId> loading;
  for (const auto& assigned : server.assigned()) loading.push_back(wire::NetworkFromProto<NetworkId>(assigned));
  for (const HostedNetwork& hosted : server.hosting().networks()) {
    if (hosted.state() == HostedNetwork::STATE_LOADING) continue;
    std::erase(loading, wire::NetworkFromProto<NetworkId>(hosted.network()));
  }
  return loading;
}

ServerList FromProto(const pb::WatchServersResponse& response) {
  ServerList list;
  for (const pb::ExpertServer& server : response.servers()) {
    list.servers.push_back(
        {.server = {.server_id = server.server_id(), .incarnation = server.incarnation(), .address = server.address()},
         .loading = LoadingOf(server)});
  }
  for (const pb::VersionShortage& shortage : response.shortages()) {
    list.shortages.push_back({.model = shortage.model(),
                              .version = shortage.version(),
                              .bytes_needed = shortage.needed_bytes(),
                              .bytes_lacking = shortage.lacking_bytes(),
                              .why = shortage.error().message()});
  }
  return list;
}

}  // namespace

ExpertDirectory::ExpertDirectory(std::shared_ptr<grpc::Channel> channel, RemoteExperts* experts, Clock* clock,
                                 const BackoffLimits& backoff)
    : stub_(pb::ServingService::NewStub(channel)),
      experts_(experts),
      watch_(
          {.what = "expert servers", .meanwhile = "those that are known stay", .backoff = backoff},
          [this](grpc::ClientContext* context, const std::function<void()>& received) {
            const auto reader = stub_->WatchServers(context, pb::WatchServersRequest());
            pb::WatchServersResponse response;
            while (reader->Read(&response)) {
              received();
              experts_->TakeList(FromProto(response));
            }
            return reader->Finish();
          },
          clock) {}

}  // namespace atl::router
