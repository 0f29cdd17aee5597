#include "router/service/expert_directory.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "common/rpc/channel.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

namespace pb = atlpb::serving::v1;
using atlpb::expert::v1::HostedNetwork;

NetworkId FromProto(const atlpb::expert::v1::Network& network) {
  return {
      .model = network.model(), .version = network.version(), .digest = network.digest(), .expert = network.expert()};
}

// What it is to host, and neither has nor could not load.
std::vector<NetworkId> LoadingOf(const pb::ExpertServer& server) {
  std::vector<NetworkId> loading;
  for (const auto& assigned : server.assigned()) loading.push_back(FromProto(assigned));
  for (const HostedNetwork& hosted : server.hosting().networks()) {
    if (hosted.state() == HostedNetwork::STATE_LOADING) continue;
    std::erase(loading, FromProto(hosted.network()));
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

ExpertDirectory::ExpertDirectory(DirectoryOptions options, std::shared_ptr<grpc::Channel> channel,
                                 RemoteExperts* experts, Clock* clock)
    : options_(options), stub_(pb::ServingService::NewStub(channel)), experts_(experts), clock_(clock) {
  thread_ = std::thread([this] { Run(); });
}

ExpertDirectory::~ExpertDirectory() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (watch_ != nullptr) watch_->TryCancel();
  }
  thread_.join();
}

void ExpertDirectory::Run() {
  absl::BitGen random;
  absl::Duration backoff = options_.first_backoff;
  while (true) {
    if (WatchOnce()) backoff = options_.first_backoff;
    absl::MutexLock lock(&mutex_);
    const absl::Duration wait = backoff * absl::Uniform(random, 0.5, 1.0);
    if (clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + wait)) return;
    backoff = std::min(backoff * 2, options_.last_backoff);
  }
}

bool ExpertDirectory::WatchOnce() {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, options_.watch_deadline);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    watch_ = &context;
  }
  const auto reader = stub_->WatchServers(&context, pb::WatchServersRequest());
  pb::WatchServersResponse response;
  bool heard = false;
  while (reader->Read(&response)) {
    heard = true;
    experts_->TakeList(FromProto(response));
  }
  const grpc::Status status = reader->Finish();
  // A coordinator of an older build keeps no list.
  const bool keeps_none = status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
  if (keeps_none) experts_->TakeList({});
  absl::MutexLock lock(&mutex_);
  watch_ = nullptr;
  if (!stopping_ && !keeps_none && status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
    // Once for each reason: it may be away for days.
    if (heard || status.error_message() != away_) {
      spdlog::warn("watching expert servers: {}; those that are known stay", status.error_message());
    }
    away_ = status.error_message();
  }
  return heard;
}

}  // namespace atl::router
