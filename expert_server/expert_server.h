// `atoll-worker --serve`: a process that hosts networks of published versions and evaluates routers' batches. Which
// networks is the coordinator's choice, or that of whoever starts it with a folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/auth/security.h"
#include "common/metrics/exposer.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "common/storage/blob_store.h"
#include "expert_server/expert_server_metrics.h"
#include "expert_server/expert_service.h"
#include "expert_server/hosting_keeper.h"
#include "expert_server/serving_heartbeat.h"
#include "inference/local/local_experts.h"

namespace atl::worker {

struct ExpertServerOptions {
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen;  // empty: none
  // Metrics in the clear and for everybody, wherever it listens.
  bool metrics_open = false;
  // Null: in the clear, for everybody.
  std::shared_ptr<const rpc::Security> security;
  router::LocalExpertsOptions local;

  // Either: a folder with one published model, and which of its networks to host: numbers of experts, or
  // kRouterNetwork; empty: all.
  std::string model_dir;
  std::vector<int32_t> networks;

  // Or: "host:port" of the coordinator that says what to host, and the URI of its blob store.
  std::string coordinator;
  std::string blob_store;
  std::string server_id;  // unique among servers, the same after a restart; empty: the advertised address
  std::string advertise;  // see AdvertisedAddress
  // Another process has taken this one's server_id; see ServingHeartbeat.
  std::function<void(const absl::Status&)> superseded;
};

// "0,3,router" -> numbers. INVALID_ARGUMENT names --experts.
absl::StatusOr<std::vector<int32_t>> ParseNetworks(const std::vector<std::string>& names);

// Owns every thread of its service. Thread-safe.
class ExpertServer {
 public:
  // With a folder it returns when the networks are loaded, with a coordinator at once. What LocalExperts, OpenVersion
  // and BlobStore::Open return, INVALID_ARGUMENT names the option, UNAVAILABLE when an address cannot be bound.
  static absl::StatusOr<std::unique_ptr<ExpertServer>> Start(const ExpertServerOptions& options, Clock* clock);
  ~ExpertServer();  // Shutdown without grace

  const std::string& address() const { return server_->address(); }
  int port() const { return server_->port(); }
  // Empty without a coordinator.
  const std::string& server_id() const { return server_id_; }
  Hosting hosting() const;

  // The coordinator is told, and routers find that nothing is hosted here any more and go elsewhere. Batches are
  // answered until routers had the time to see it, then those under way get `grace`, and what is left is cancelled.
  // Without grace only the coordinator is told. Safe to call twice.
  void Shutdown(absl::Duration grace);

 private:
  explicit ExpertServer(Clock* clock) : clock_(clock) {}
  absl::Status HostFolder(const ExpertServerOptions& options);
  absl::Status FollowCoordinator(const ExpertServerOptions& options);
  absl::Status Listen(const ExpertServerOptions& options);
  void MakeKeeper();
  absl::StatusOr<int64_t> Load(const AssignedNetwork& network);
  absl::StatusOr<int64_t> Read(const AssignedNetwork& network);
  void Refresh() { metrics_->Refresh(hosting(), local_->stats(), *service_); }

  Clock* const clock_;
  std::unique_ptr<metrics::Registry> registry_;
  std::unique_ptr<ExpertServerMetrics> metrics_;
  std::unique_ptr<storage::BlobStore> store_;
  std::unique_ptr<router::LocalExperts> local_;
  std::unique_ptr<ExpertService> service_;
  std::unique_ptr<HostingKeeper> keeper_;
  std::unique_ptr<rpc::Server> server_;
  std::string server_id_;
  std::unique_ptr<ServingHeartbeat> heartbeat_;  // null without a coordinator
  std::unique_ptr<metrics::Exposer> exposer_;
  mutable absl::Mutex mutex_;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;  // hosts nothing any more, for whoever asks
};

}  // namespace atl::worker
