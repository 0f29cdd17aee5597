#include "router/server/router_server.h"

#include <algorithm>
#include <string_view>

#include "common/auth/http_access.h"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/model_folder.h"
#include "common/rpc/channel.h"
#include "common/storage/existing_store.h"
#include "fmt/format.h"
#include "router/engine/sampler_info.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

constexpr char const* kServiceName = atlpb::sample::v1::SampleService::service_full_name();

// How long a model folder waits at the start for servers that host its networks.
constexpr absl::Duration kServersPatience = absl::Seconds(15);

// How long a load waits for the coordinator's first list of servers; then it is tried again.
constexpr absl::Duration kListPatience = absl::Seconds(15);

absl::Status CheckSources(const RouterOptions& options) {
  if (options.model_dir.empty() == options.coordinator.empty()) {
    return FieldError("--model-dir", "MODEL_SOURCE_REQUIRED",
                      "expected either --model-dir, or --coordinator with --blob-store; found both or neither");
  }
  if (!options.coordinator.empty() && options.blob_store.empty()) {
    return FieldError("--blob-store", "BLOB_STORE_REQUIRED",
                      "expected the URI of the coordinator's blob store, found none");
  }
  const bool needs_servers = options.own_networks == OwnNetworks::kRouter || options.own_networks == OwnNetworks::kNone;
  if (needs_servers && options.expert_servers.empty() && options.coordinator.empty()) {
    return FieldError(
        "--own-networks", "EXPERT_SERVER_REQUIRED",
        "expected an --expert-server, or a --coordinator that lists some, for what is not evaluated here; "
        "found none");
  }
  return absl::OkStatus();
}

absl::Status CheckAddress(std::string_view flag, const std::string& address) {
  if (IsAddress(address)) return absl::OkStatus();
  return FieldError(flag, "INVALID_ADDRESS",
                    fmt::format("expected HOST:PORT with a port from 1 to 65535, found '{}'", address));
}

// Rejects options that would be ignored or would block forever.
absl::Status CheckOptions(const RouterOptions& options) {
  for (const std::string& address : options.expert_servers) {
    ATOLL_RETURN_IF_ERROR(CheckAddress("--expert-server", address));
  }
  if (!options.coordinator.empty()) {
    return IsAddressList(options.coordinator) ? absl::OkStatus() : CheckAddress("--coordinator", options.coordinator);
  }
  if (!options.models.empty() || !options.pinned.empty()) {
    return FieldError(options.models.empty() ? "--pin" : "--model", "COORDINATOR_REQUIRED",
                      "expected a --coordinator beside it, found --model-dir, which holds one version");
  }
  return absl::OkStatus();
}

// Rejects targets that must not get the token, because every called server gets it.
absl::Status CheckTargets(const RouterOptions& options) {
  if (options.security == nullptr) return absl::OkStatus();
  if (!options.coordinator.empty()) ATOLL_RETURN_IF_ERROR(options.security->CheckTarget(options.coordinator));
  for (const std::string& address : options.expert_servers) {
    ATOLL_RETURN_IF_ERROR(options.security->CheckTarget(address));
  }
  return absl::OkStatus();
}

}  // namespace

RouterServer::RouterServer(const RouterOptions& options)
    : security_(options.security),
      registry_(metrics::Registry::Create("atoll-router")),
      metrics_(registry_.get()),
      engine_(options.engine, Clock::Real(), &metrics_),
      service_(&engine_, Clock::Real(),
               {.versions = [this] { return Versions(); },
                .caller =
                    [this](const grpc::CallbackServerContext& call) {
                      return rpc::CallerOf(security_ == nullptr ? nullptr : security_->guard().get(), call);
                    },
                .quotas = &quotas_}) {}

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(const RouterOptions& options) {
  ATOLL_RETURN_IF_ERROR(CheckSources(options));
  ATOLL_RETURN_IF_ERROR(CheckOptions(options));
  ATOLL_RETURN_IF_ERROR(CheckTargets(options));
  ATOLL_ASSIGN_OR_RETURN(const auto credentials, rpc::ServerCredentialsOf(options.security.get(), options.listen));
  std::unique_ptr<RouterServer> router(new RouterServer(options));
  ATOLL_ASSIGN_OR_RETURN(router->experts_, LocalExperts::Create({.device = options.device,
                                                                 .threads = options.threads,
                                                                 .memory_budget_bytes = options.memory_budget_bytes},
                                                                Clock::Real()));
  router->metrics_.WatchMemory([experts = router->experts_.get()] { return experts->stats(); });
  for (const auto& lane : router->experts_->lanes()) router->engine_.AddLane(lane);
  router->own_networks_ = options.own_networks;
  router->remote_ = std::make_unique<RemoteExperts>(
      RemoteExperts::Options{.addresses = options.expert_servers},
      RemoteExperts::Connect(Clock::Real(), rpc::ChannelCredentialsOf(options.security.get())), &router->engine_,
      Clock::Real());
  // A folder's servers are the named ones.
  if (options.coordinator.empty()) router->remote_->TakeList({});
  if (!options.model_dir.empty()) ATOLL_RETURN_IF_ERROR(router->LoadFolder(options.model_dir));
  router->engine_.Start();
  ATOLL_ASSIGN_OR_RETURN(router->server_,
                         rpc::Server::Start({.listen = options.listen,
                                             .services = {{kServiceName, &router->service_}},
                                             .credentials = credentials,
                                             .open_streams = rpc::OpenStreamsOf(options.security.get())}));
  if (!options.rest.listen.empty()) {
    RestOptions rest = options.rest;
    rest.quotas = &router->quotas_;
    rest.security = rpc::HttpSecurityOf(options.security.get());
    ATOLL_ASSIGN_OR_RETURN(
        router->rest_,
        RestServer::Start(rest, &router->engine_, Clock::Real(),
                          [metrics = &router->metrics_](std::string_view route, int code, absl::Duration duration) {
                            metrics->OnRest(route, code, duration);
                          }));
  }
  if (!options.metrics_listen.empty()) {
    const auto refresh = [metrics = &router->metrics_,
                          show = rpc::ShowCertificate(options.security, router->registry_.get())] {
      metrics->Refresh();
      show();
    };
    ATOLL_ASSIGN_OR_RETURN(router->exposer_,
                           metrics::Exposer::Start(
                               router->registry_.get(), options.metrics_listen,
                               [engine = &router->engine_] { return engine->takes_requests(); }, refresh,
                               rpc::MetricsSecurityOf(options.security.get(), options.metrics_open)));
  }
  if (options.model_dir.empty()) {
    ATOLL_RETURN_IF_ERROR(router->Follow(options));
  } else {
    router->SetServing();
  }
  return router;
}

absl::Status RouterServer::LoadFolder(const std::string& folder) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, storage::FindModelFolder(folder));
  ATOLL_ASSIGN_OR_RETURN(store_, storage::BlobStore::Open("file://" + path));
  ATOLL_ASSIGN_OR_RETURN(LoadedVersion version, Load(store_->root(), /*digest=*/""));
  ATOLL_RETURN_IF_ERROR(remote_->AwaitHosted(version.remote, kServersPatience));
  spdlog::info("serving model '{}' version '{}' from {}", version.served->info.model, version.served->info.version,
               folder);
  engine_.Serve(std::move(version.served));
  return absl::OkStatus();
}

RouterVersions RouterServer::Versions() {
  RouterVersions versions{.memory_budget_bytes = experts_->stats().budget_bytes};
  absl::MutexLock lock(&follower_mutex_);
  if (followed_ != nullptr) versions.versions = followed_->Versions();
  return versions;
}

absl::StatusOr<OwnNetworks> RouterServer::DecideOwnNetworks() {
  if (own_networks_ != OwnNetworks::kAuto) return own_networks_;
  ATOLL_ASSIGN_OR_RETURN(const bool any_server, remote_->AwaitAnyServer(kListPatience));
  return any_server ? OwnNetworks::kRouter : OwnNetworks::kAll;
}

absl::StatusOr<LoadedVersion> RouterServer::Load(const std::string& folder_uri, const std::string& digest) {
  ATOLL_ASSIGN_OR_RETURN(std::shared_ptr<const VersionFiles> files, OpenVersion(store_.get(), folder_uri, digest));
  ATOLL_ASSIGN_OR_RETURN(const OwnNetworks own, DecideOwnNetworks());
  LoadedVersion loaded;
  const std::shared_ptr<const ServedVersion> served = ServedOf(files);
  int64_t router_bytes = 0;
  int64_t largest_expert = 0;
  for (int32_t network = kRouterNetwork; network < served->info.experts; ++network) {
    ATOLL_ASSIGN_OR_RETURN(const int64_t bytes, WeightBytes(*files, network));
    const bool routes = network == kRouterNetwork;
    const bool own_network = own == OwnNetworks::kAll || (routes && own == OwnNetworks::kRouter);
    if (routes) router_bytes = bytes;
    if (!routes) largest_expert = std::max(largest_expert, bytes);
    loaded.weight_bytes += bytes;
    if (own_network) loaded.own_weight_bytes += bytes;
    if (!own_network) loaded.remote.push_back(served->network(network));
  }
  // With less, weights would be read at every step.
  const int64_t budget = experts_->stats().budget_bytes;
  if (budget > 0 && own == OwnNetworks::kAll && router_bytes + largest_expert > budget) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "VERSION_DOES_NOT_FIT",
        fmt::format("model '{}' version '{}': expected a memory budget of at least {} bytes, for its router "
                    "network and its largest expert, found {}; all its networks take {}",
                    served->info.model, served->info.version, router_bytes + largest_expert, budget,
                    loaded.weight_bytes));
  }
  if (budget > 0 && loaded.own_weight_bytes > budget) {
    spdlog::info("model '{}' version '{}': its {} bytes are read in turn within a memory budget of {}",
                 served->info.model, served->info.version, loaded.own_weight_bytes, budget);
  }
  if (own == OwnNetworks::kAll) {
    ATOLL_ASSIGN_OR_RETURN(files, experts_->Host(std::move(files)));
    loaded.served = ServedOf(files);
    return loaded;
  }
  if (own == OwnNetworks::kNone) {
    loaded.served = served;
    return loaded;
  }
  ATOLL_RETURN_IF_ERROR(experts_->Load(files, kRouterNetwork));
  loaded.served = {served.get(), [this, served](const ServedVersion* version) {
                     experts_->Forget(version->network(kRouterNetwork));
                   }};
  return loaded;
}

absl::Status RouterServer::Follow(const RouterOptions& options) {
  ATOLL_RETURN_IF_ERROR(WithContext(storage::CheckStoreExists(options.blob_store), "--blob-store"));
  ATOLL_ASSIGN_OR_RETURN(store_, storage::BlobStore::Open(options.blob_store));
  const std::shared_ptr<grpc::Channel> channel =
      rpc::MakeChannel(options.coordinator, rpc::ChannelCredentialsOf(options.security.get()));
  directory_ = std::make_unique<ExpertDirectory>(channel, remote_.get(), Clock::Real());
  ModelFollower::Callbacks callbacks{
      .server_needs =
          [this](const std::vector<NetworkId>& networks) {
            ServerNeeds needs = remote_->Needs(networks);
            needs.without_servers = needs.without_servers && own_networks_ == OwnNetworks::kAuto;
            return needs;
          },
      .on_serving =
          [this](const std::string& model, const std::string& version, int64_t generation) {
            metrics_.OnServing(model, generation);
            SetServing();
          },
      .on_load_failed = [this](const PublishedVersion& version,
                               const absl::Status&) { metrics_.OnLoadFailed(version.model); },
      .on_waiting = [this](const std::string& model,
                           int64_t networks) { metrics_.OnWaitingForServers(model, networks); },
      .on_connection = [this](bool connected) { metrics_.OnCoordinatorConnection(connected); },
  };
  follower_ = std::make_unique<ModelFollower>(
      FollowerOptions{.models = options.models, .pinned = options.pinned}, channel,
      [this](const PublishedVersion& version) { return Load(version.uri, version.digest); }, &engine_, Clock::Real(),
      std::move(callbacks));
  {
    absl::MutexLock lock(&follower_mutex_);
    followed_ = follower_.get();
  }
  server_watcher_ = remote_->Watch([follower = follower_.get()] { follower->LookAgain(); });
  // A router that evaluates everything itself has nothing to ask of servers.
  if (own_networks_ == OwnNetworks::kAll) return absl::OkStatus();
  reports_ = std::make_unique<RoutingReports>(
      own_networks_ == OwnNetworks::kNone, channel, [follower = follower_.get()] { return follower->Versions(); },
      &engine_, Clock::Real());
  return absl::OkStatus();
}

void RouterServer::SetServing() {
  server_->SetServing(kServiceName, true);
}

void RouterServer::Shutdown(absl::Duration grace) {
  // No version begins to serve any more, which would turn health back.
  if (follower_ != nullptr) follower_->Stop();
  directory_.reset();
  reports_.reset();
  if (remote_ != nullptr) remote_->Stop();
  if (server_ != nullptr) {
    server_->SetServing(false);
    engine_.Drain(grace);
    // Finished streams end by themselves; the others are cancelled, and the engine, still running, lets them go.
    server_->Shutdown(absl::Seconds(1));
  }
  engine_.Stop();
  // After the engine has ended its requests, so that each of them gets its answer.
  rest_.reset();
  // Last: a load under way may take minutes, and requests are not to wait for it.
  if (server_watcher_) remote_->Unwatch(*server_watcher_);
  server_watcher_.reset();
  {
    absl::MutexLock lock(&follower_mutex_);
    followed_ = nullptr;
  }
  follower_.reset();
}

RouterServer::~RouterServer() {
  Shutdown(absl::ZeroDuration());
}

}  // namespace atl::router
