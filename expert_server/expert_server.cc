#include "expert_server/expert_server.h"

#include <charconv>
#include <utility>

#include "common/auth/http_access.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/model_folder.h"
#include "common/rpc/listen_probe.h"
#include "common/storage/existing_store.h"
#include "fmt/format.h"
#include "inference/version_files.h"
#include "spdlog/spdlog.h"

namespace atl::worker {
namespace {

constexpr char const* kServiceName = atlpb::expert::v1::ExpertService::service_full_name();
constexpr char kRouterName[] = "router";
// Routers ask every second what is hosted.
constexpr absl::Duration kRoutersLook = absl::Milliseconds(1200);

absl::Status CheckSource(const ExpertServerOptions& options) {
  if (options.model_dir.empty() == options.coordinator.empty()) {
    return FieldError("--model-dir", "MODEL_SOURCE_REQUIRED",
                      "expected either --model-dir, the folder of a published model, or --coordinator with "
                      "--blob-store; found both or neither");
  }
  if (options.coordinator.empty()) return absl::OkStatus();
  if (options.blob_store.empty()) {
    return FieldError("--blob-store", "BLOB_STORE_REQUIRED",
                      "expected the URI of the coordinator's blob store, found none");
  }
  if (!options.networks.empty()) {
    return FieldError("--experts", "NETWORKS_ARE_ASSIGNED",
                      "expected --model-dir with it: with --coordinator the coordinator says what is hosted");
  }
  ATOLL_RETURN_IF_ERROR(WithContext(storage::CheckStoreExists(options.blob_store), "--blob-store"));
  // Before anything is bound; the port does not matter.
  return AdvertisedAddress(options.listen, options.advertise, /*bound_port=*/0).status();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseNetworks(const std::vector<std::string>& names) {
  std::vector<int32_t> networks;
  for (const std::string& name : names) {
    int32_t expert = kRouterNetwork;
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data(), end, expert);
    const bool number = parsed.ec == std::errc() && parsed.ptr == end && expert >= 0;
    if (!number && name != kRouterName) {
      return FieldError("--experts", "UNKNOWN_NETWORK",
                        fmt::format("expected numbers of experts or '{}', found '{}'", kRouterName, name));
    }
    networks.push_back(number ? expert : kRouterNetwork);
  }
  return networks;
}

absl::Status ExpertServer::HostFolder(const ExpertServerOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, storage::FindModelFolder(options.model_dir));
  ATOLL_ASSIGN_OR_RETURN(store_, storage::BlobStore::Open("file://" + path));
  ATOLL_ASSIGN_OR_RETURN(const auto files, router::OpenVersion(store_.get(), store_->root(), /*digest=*/""));
  std::vector<int32_t> networks = options.networks;
  for (int32_t expert = kRouterNetwork; options.networks.empty() && expert < files->index.experts; ++expert) {
    networks.push_back(expert);
  }
  std::vector<AssignedNetwork> assigned;
  for (const int32_t expert : networks) {
    if (expert >= files->index.experts) {
      return FieldError("--experts", "UNKNOWN_NETWORK",
                        fmt::format("expected experts of model '{}' from 0 to {}, found {}", files->index.name,
                                    files->index.experts - 1, expert));
    }
    assigned.push_back({.id = files->network(expert), .uri = store_->root()});
  }
  keeper_->Assign(std::move(assigned));
  return keeper_->AwaitReady();
}

absl::Status ExpertServer::FollowCoordinator(const ExpertServerOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(const std::string address,
                         AdvertisedAddress(options.listen, options.advertise, server_->port()));
  server_id_ = options.server_id.empty() ? address : options.server_id;
  heartbeat_ = std::make_unique<ServingHeartbeat>(
      ServingHeartbeatOptions{.coordinator = options.coordinator,
                              .server_id = server_id_,
                              .credentials = rpc::ChannelCredentialsOf(options.security.get()),
                              .address = address},
      ServingHeartbeat::Calls{
          .hosting = [this] { return ToProto(hosting(), service_->slots()); },
          .assign = [this](std::vector<AssignedNetwork> assigned) { keeper_->Assign(std::move(assigned)); },
          .superseded =
              [superseded = options.superseded](const absl::Status& status) {
                if (superseded) superseded(status);
              },
          .answered = [this](const absl::Status& status) { metrics_->OnHeartbeat(status); }},
      clock_);
  heartbeat_->Start();
  return absl::OkStatus();
}

absl::Status ExpertServer::Listen(const ExpertServerOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(const auto credentials, rpc::ServerCredentialsOf(options.security.get(), options.listen));
  ATOLL_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.listen = options.listen,
                                                      .services = {{kServiceName, service_.get()}},
                                                      .credentials = credentials,
                                                      .open_streams = rpc::OpenStreamsOf(options.security.get())}));
  if (options.metrics_listen.empty()) return absl::OkStatus();
  const auto refresh = [this, show = rpc::ShowCertificate(options.security, registry_.get())] {
    Refresh();
    show();
  };
  ATOLL_ASSIGN_OR_RETURN(exposer_,
                         metrics::Exposer::Start(registry_.get(), options.metrics_listen, /*healthy=*/{}, refresh,
                                                 rpc::MetricsSecurityOf(options.security.get(), options.metrics_open)));
  return absl::OkStatus();
}

void ExpertServer::MakeKeeper() {
  keeper_ = std::make_unique<HostingKeeper>(
      HostingKeeper::Calls{.load = [this](const AssignedNetwork& network) { return Load(network); },
                           .drop = [this](const NetworkId& id) { local_->Forget(id); },
                           .changed =
                               [this] {
                                 if (heartbeat_ != nullptr) heartbeat_->HostingChanged();
                               }},
      clock_);
}

absl::StatusOr<int64_t> ExpertServer::Load(const AssignedNetwork& network) {
  absl::StatusOr<int64_t> bytes = Read(network);
  if (bytes.ok()) return bytes;
  metrics_->OnLoadFailed();
  // Without a coordinator the first error ends the process, which then prints it.
  if (heartbeat_ != nullptr) {
    spdlog::error("cannot load {}: {}", Describe(network.id), std::string(bytes.status().message()));
  }
  return bytes;
}

absl::StatusOr<int64_t> ExpertServer::Read(const AssignedNetwork& network) {
  ATOLL_ASSIGN_OR_RETURN(const auto files, router::OpenVersion(store_.get(), network.uri, network.id.digest));
  // Before anything of it is read: a folder that moved must not serve under another's name.
  if (files->network(network.id.expert) != network.id) {
    return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                     fmt::format("{}: expected {}, found model '{}' version '{}'", network.uri, Describe(network.id),
                                 files->index.name, files->index.version));
  }
  // Loads are counted: one more would keep it for ever.
  if (!local_->Hosts(network.id)) ATOLL_RETURN_IF_ERROR(local_->Load(files, network.id.expert));
  return router::WeightBytes(*files, network.id.expert);
}

absl::StatusOr<std::unique_ptr<ExpertServer>> ExpertServer::Start(const ExpertServerOptions& options, Clock* clock) {
  ATOLL_RETURN_IF_ERROR(CheckSource(options));
  ATOLL_RETURN_IF_ERROR(rpc::ProbeListen(options.listen));
  std::unique_ptr<ExpertServer> server(new ExpertServer(clock));
  server->registry_ = metrics::Registry::Create("atoll-expert-server");
  server->metrics_ = std::make_unique<ExpertServerMetrics>(server->registry_.get());
  ATOLL_ASSIGN_OR_RETURN(server->local_, router::LocalExperts::Create(options.local, clock));
  ExpertServiceOptions service{
      .batch_ended = [metrics = server->metrics_.get()](const BatchEnd& batch) { metrics->OnBatch(batch); }};
  server->service_ = std::make_unique<ExpertService>(
      std::move(service), server->local_->lanes(), [server = server.get()] { return server->hosting(); }, clock);
  server->MakeKeeper();
  if (options.coordinator.empty()) {
    ATOLL_RETURN_IF_ERROR(server->HostFolder(options));
    ATOLL_RETURN_IF_ERROR(server->Listen(options));
  } else {
    ATOLL_ASSIGN_OR_RETURN(server->store_, storage::BlobStore::Open(options.blob_store));
    ATOLL_RETURN_IF_ERROR(server->Listen(options));
    ATOLL_RETURN_IF_ERROR(server->FollowCoordinator(options));
  }
  server->server_->SetServing(true);
  return server;
}

Hosting ExpertServer::hosting() const {
  Hosting hosting{.fingerprint = local_->fingerprint(), .memory_bytes = local_->stats().budget_bytes};
  absl::MutexLock lock(&mutex_);
  if (leaving_) return hosting;
  hosting.networks = keeper_->hosted();
  for (placement::HostedNetwork& network : hosting.networks) {
    if (network.state != placement::NetworkState::kReady || local_->Hosts(network.network)) continue;
    network.state = placement::NetworkState::kLoading;
    keeper_->LoadAgain(network.network);
  }
  return hosting;
}

void ExpertServer::Shutdown(absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    leaving_ = true;
  }
  if (heartbeat_ != nullptr) heartbeat_->Leave();
  if (server_ == nullptr) return;
  server_->SetServing(false);
  if (grace > absl::ZeroDuration() && service_->streams() > 0) {
    absl::MutexLock lock(&mutex_);
    const auto never = [] { return false; };
    clock_->AwaitUntil(&mutex_, absl::Condition(&never), clock_->Monotonic() + kRoutersLook);
  }
  service_->AwaitIdle(clock_->Monotonic() + grace);
  server_->Shutdown(absl::ZeroDuration());
}

ExpertServer::~ExpertServer() {
  Shutdown(absl::ZeroDuration());
  exposer_.reset();
  server_.reset();
  // Its thread may still call the heartbeat, which calls nothing any more.
  keeper_.reset();
  service_.reset();
}

}  // namespace atl::worker
