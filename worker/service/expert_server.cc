#include "worker/service/expert_server.h"

#include <charconv>
#include <filesystem>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "router/engine/version_files.h"

namespace atl::worker {
namespace {

constexpr char const* kServiceName = atlpb::expert::v1::ExpertService::service_full_name();
constexpr char kRouterName[] = "router";

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseNetworks(const std::vector<std::string>& names) {
  std::vector<int32_t> networks;
  for (const std::string& name : names) {
    int32_t expert = router::kRouterNetwork;
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data(), end, expert);
    const bool number = parsed.ec == std::errc() && parsed.ptr == end && expert >= 0;
    if (!number && name != kRouterName) {
      return FieldError("--experts", "UNKNOWN_NETWORK",
                        fmt::format("expected numbers of experts or '{}', found '{}'", kRouterName, name));
    }
    networks.push_back(number ? expert : router::kRouterNetwork);
  }
  return networks;
}

absl::Status ExpertServer::OpenFolder(const ExpertServerOptions& options, std::vector<AssignedNetwork>* assigned) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(options.model_dir, error);
  if (error) {
    return MakeError(
        absl::StatusCode::kNotFound, "MODEL_FOLDER_NOT_FOUND",
        fmt::format("expected a folder with model_index.json, found no '{}': {}", options.model_dir, error.message()));
  }
  ATOLL_ASSIGN_OR_RETURN(store_, storage::BlobStore::Open("file://" + path.string()));
  ATOLL_ASSIGN_OR_RETURN(const auto files, router::OpenVersion(store_.get(), store_->root(), /*digest=*/""));
  std::vector<int32_t> networks = options.networks;
  for (int32_t expert = router::kRouterNetwork; options.networks.empty() && expert < files->index.experts; ++expert) {
    networks.push_back(expert);
  }
  for (const int32_t expert : networks) {
    if (expert >= files->index.experts) {
      return FieldError("--experts", "UNKNOWN_NETWORK",
                        fmt::format("expected experts of model '{}' from 0 to {}, found {}", files->index.name,
                                    files->index.experts - 1, expert));
    }
    assigned->push_back({.id = files->served.network(expert), .uri = store_->root()});
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ExpertServer::Load(const AssignedNetwork& network) {
  ATOLL_ASSIGN_OR_RETURN(const auto files, router::OpenVersion(store_.get(), network.uri, network.id.digest));
  // Before anything of it is read: a folder that moved must not serve under another's name.
  if (files->served.network(network.id.expert) != network.id) {
    return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                     fmt::format("{}: expected {}, found model '{}' version '{}'", network.uri, Describe(network.id),
                                 files->index.name, files->index.version));
  }
  ATOLL_RETURN_IF_ERROR(local_->Load(files, network.id.expert));
  return router::WeightBytes(*files, network.id.expert);
}

absl::StatusOr<std::unique_ptr<ExpertServer>> ExpertServer::Start(const ExpertServerOptions& options, Clock* clock) {
  if (options.model_dir.empty()) {
    return FieldError("--model-dir", "MODEL_SOURCE_REQUIRED", "expected the folder of a published model, found none");
  }
  std::unique_ptr<ExpertServer> server(new ExpertServer());
  ATOLL_ASSIGN_OR_RETURN(server->local_, router::LocalExperts::Create(options.local, clock));
  std::vector<AssignedNetwork> assigned;
  ATOLL_RETURN_IF_ERROR(server->OpenFolder(options, &assigned));
  server->service_ = std::make_unique<ExpertService>(
      options.service, server->local_->lanes(), [server = server.get()] { return server->hosting(); }, clock);
  server->keeper_ = std::make_unique<HostingKeeper>(
      HostingKeeper::Options{},
      HostingKeeper::Calls{
          .load = [server = server.get()](const AssignedNetwork& network) { return server->Load(network); },
          .drop = [server = server.get()](const router::NetworkId& id) { server->local_->Forget(id); }},
      clock);
  server->keeper_->Assign(std::move(assigned));
  ATOLL_RETURN_IF_ERROR(server->keeper_->AwaitReady());
  ATOLL_ASSIGN_OR_RETURN(server->server_, rpc::Server::Start({.listen = options.listen,
                                                              .services = {{kServiceName, server->service_.get()}}}));
  server->server_->SetServing(true);
  return server;
}

Hosting ExpertServer::hosting() const {
  return {.networks = keeper_->hosted(),
          .fingerprint = local_->fingerprint(),
          .memory_bytes = local_->stats().budget_bytes};
}

void ExpertServer::Shutdown(absl::Duration grace) {
  if (server_ != nullptr) server_->Shutdown(grace);
}

ExpertServer::~ExpertServer() {
  Shutdown(absl::ZeroDuration());
  server_.reset();
  keeper_.reset();
  service_.reset();
}

}  // namespace atl::worker
