#include "router/remote/expert_directory.h"

#include "grpcpp/channel.h"

namespace atl::router {
namespace {

namespace serving_pb = atlpb::serving::v1;

ServerList FromProto(const serving_pb::WatchServersResponse& response) {
  ServerList list;
  for (const serving_pb::ExpertServer& server : response.servers()) {
    list.servers.push_back(
        {.server_id = server.server_id(), .incarnation = server.incarnation(), .address = server.address()});
  }
  for (const serving_pb::VersionShortage& shortage : response.shortages()) {
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
    : stub_(serving_pb::ServingService::NewStub(channel)),
      experts_(experts),
      watch_(
          {.what = "expert servers", .meanwhile = "those that are known stay", .backoff = backoff},
          [this](grpc::ClientContext* context, const std::function<void()>& received) {
            const auto reader = stub_->WatchServers(context, serving_pb::WatchServersRequest());
            serving_pb::WatchServersResponse response;
            while (reader->Read(&response)) {
              received();
              experts_->TakeList(FromProto(response));
            }
            return reader->Finish();
          },
          clock) {}

}  // namespace atl::router
