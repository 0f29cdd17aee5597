// `atoll-worker --serve`: a process that hosts networks of published versions and evaluates routers' batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/server.h"
#include "common/storage/blob_store.h"
#include "router/engine/local_experts.h"
#include "worker/service/expert_service.h"
#include "worker/service/hosting_keeper.h"

namespace atl::worker {

struct ExpertServerOptions {
  std::string listen = "127.0.0.1:0";
  router::LocalExpertsOptions local;
  // A folder with one published model, and which of its networks to host: numbers of experts, or kRouterNetwork; empty:
  // all.
  std::string model_dir;
  std::vector<int32_t> networks;
  ExpertServiceOptions service;
};

// "0,3,router" -> numbers. INVALID_ARGUMENT names --experts.
absl::StatusOr<std::vector<int32_t>> ParseNetworks(const std::vector<std::string>& names);

// Owns every thread of its service. Thread-safe.
class ExpertServer {
 public:
  // Returns when the networks of a folder are loaded: what LocalExperts and OpenVersion return, INVALID_ARGUMENT names
  // the option, UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<ExpertServer>> Start(const ExpertServerOptions& options, Clock* clock);
  ~ExpertServer();  // Shutdown without grace

  const std::string& address() const { return server_->address(); }
  int port() const { return server_->port(); }
  Hosting hosting() const;

  // Health turns NOT_SERVING; routers go elsewhere. What is under way gets `grace`, then it is cancelled. Safe to call
  // twice.
  void Shutdown(absl::Duration grace);

 private:
  ExpertServer() = default;
  absl::Status OpenFolder(const ExpertServerOptions& options, std::vector<AssignedNetwork>* assigned);
  absl::StatusOr<int64_t> Load(const AssignedNetwork& network);

  std::unique_ptr<storage::BlobStore> store_;
  std::unique_ptr<router::LocalExperts> local_;
  std::unique_ptr<ExpertService> service_;
  std::unique_ptr<HostingKeeper> keeper_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace atl::worker
