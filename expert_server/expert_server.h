// `atoll-worker --serve`: a process that hosts networks of published versions and evaluates routers' batches. The
// coordinator assigns the networks; without a coordinator, the options name them and a folder.
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
  // Serves metrics in the clear and without authentication on any address.
  bool metrics_open = false;
  // Null: in the clear and without authentication.
  std::shared_ptr<const rpc::Security> security;
  router::LocalExpertsOptions local;

  // Either: a folder with one published model, and the networks to host (numbers of experts, or kRouterNetwork). Empty:
  // all.
  std::string model_dir;
  std::vector<int32_t> networks;

  // Or: "host:port" of the coordinator that assigns networks, and the URI of its blob store.
  std::string coordinator;
  std::string blob_store;
  std::string server_id;  // unique among servers, the same after a restart; empty: the advertised address
  std::string advertise;  // see AdvertisedAddress
  // Called when another process has taken this one's server_id; see ServingHeartbeat.
  std::function<void(const absl::Status&)> superseded;
};

// "0,3,router" -> numbers. INVALID_ARGUMENT names --experts.
absl::StatusOr<std::vector<int32_t>> ParseNetworks(const std::vector<std::string>& names);

// Owns every thread of its service. Thread-safe.
class ExpertServer {
 public:
  // With a folder, blocks until the networks are loaded; with a coordinator, returns at once. Returns the errors of
  // LocalExperts, OpenVersion and BlobStore::Open, INVALID_ARGUMENT that names the option, and UNAVAILABLE if an
  // address cannot be bound.
  static absl::StatusOr<std::unique_ptr<ExpertServer>> Start(const ExpertServerOptions& options, Clock* clock);
  ~ExpertServer();  // Shutdown without grace

  const std::string& address() const { return server_->address(); }
  int port() const { return server_->port(); }
  // Empty without a coordinator.
  const std::string& server_id() const { return server_id_; }
  Hosting hosting() const;

  // Reports to the coordinator that this server leaves, and reports to routers that it hosts no networks. It answers
  // batches until routers had the time to see this, waits up to `grace` for the unfinished ones, and cancels the rest.
  // Without grace it does not wait. Safe to call twice.
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
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;  // reports no networks, to any caller
};

}  // namespace atl::worker
