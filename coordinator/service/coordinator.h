// A whole coordinator: store, core, registry of expert servers, services, collection and metrics, wired together. One
// per process in main.cc; tests start it in process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/security.h"
#include "common/base/clock.h"
#include "common/metrics/exposer.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "common/storage/blob_store.h"
#include "coordinator/blobs/collector.h"
#include "coordinator/blobs/storage_grants.h"
#include "coordinator/core/core.h"
#include "coordinator/core/executor.h"
#include "coordinator/service/admin_service.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/island_service.h"
#include "coordinator/service/job_service.h"
#include "coordinator/service/model_service.h"
#include "coordinator/service/open_watches.h"
#include "coordinator/service/serving_service.h"
#include "coordinator/service/standby.h"
#include "coordinator/serving/expert_registry.h"
#include "coordinator/store/store.h"

namespace atl::coordinator {

struct CoordinatorOptions {
  std::string listen = "127.0.0.1:0";
  // Empty: no metrics over HTTP.
  std::string metrics_listen;
  // Serves metrics in plain text to every client, wherever it listens.
  bool metrics_open = false;
  // Null: plain text, without authentication.
  std::shared_ptr<const rpc::Security> security;
  // An SQLite file, or postgres://…
  std::string store;
  // How long the lease of a PostgreSQL store outlives a coordinator that does not answer.
  absl::Duration store_lease = absl::Seconds(10);
  std::string blob_store;
  // The store is a restored copy, even if the file does not say so: take a higher epoch and hold collection.
  bool restored = false;
  // After a restore: adopt intact checkpoints before serving (adoption.h), which releases collection.
  bool adopt = false;
  leases::LeaseOptions lease;
  CollectorOptions collector;
  absl::Duration watch_interval = absl::Milliseconds(100);
  // Empty: no audit log.
  std::string audit_log;
  // Start keeps its limit below the lease, and sets its blob_root to that of `blob_store`.
  StorageGrantOptions storage_grants;
  int32_t expert_replicas = 2;  // servers per expert; hot experts have more
  // Called when this process may not continue with the store: the outcome of its last transaction is unknown, or
  // another coordinator has the store. Empty: the process ends at once with kExitStoreLost. For tests.
  std::function<void(const absl::Status& why)> on_store_lost;
  // Called while another coordinator has the PostgreSQL store. on_standby gets, once, the address at which this one
  // listens as standby. keep_waiting is then called repeatedly and waits for `poll`; false gives up, and empty means
  // not to wait. keep_waiting is also called, with no wait, while checkpoints are adopted.
  std::function<void(const std::string& address)> on_standby;
  std::function<bool(absl::Duration poll)> keep_waiting;
};

inline constexpr int kExitStoreLost = 3;

// Checks whether keys may be granted: INVALID_ARGUMENT if the blob store takes none (GRANTS_UNSUPPORTED), or if they
// would leave the machine in plain text (STORAGE_GRANT_NEEDS_TLS).
absl::Status CheckStorageGrants(const CoordinatorOptions& options);

// Checks that this process may and can listen at the addresses, before anything is made.
absl::Status CheckListen(const CoordinatorOptions& options);

// Thread-safe.
class Coordinator {
 public:
  // Opens the store and the blob store, loads, listens, and serves. While another coordinator has a PostgreSQL store it
  // waits, as Standby; UNAVAILABLE (COORDINATOR_STOPPING) when keep_waiting gave up. Other errors as in SqliteStore,
  // PgStore, BlobStore, EstablishEpoch and rpc::Server.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(CoordinatorOptions options, Clock* clock = Clock::Real());
  ~Coordinator();  // Stop without grace

  // "host:port", as bound.
  const std::string& address() const { return server_->address(); }
  // Empty without metrics over HTTP.
  std::string metrics_address() const { return exposer_ ? exposer_->address() : ""; }
  const metrics::Registry& registry() const { return *registry_; }
  Collector& collector() { return *collector_; }

  // Runs a function with the core on the core's thread and waits for it; false when the core has stopped.
  bool WithCore(const std::function<void(Core&)>& function);

  // Call after the audit log's file was moved. Errors of AuditLog::Reopen.
  absl::Status ReopenAuditLog();

  // Sets health to NOT_SERVING, ends waiting claims and watches with UNAVAILABLE, and gives running calls `grace`. Safe
  // to call twice.
  void Stop(absl::Duration grace);

 private:
  Coordinator() = default;
  absl::Status Open(const CoordinatorOptions& options, Clock* clock);
  absl::Status OpenStore(const CoordinatorOptions& options);
  absl::Status StandBy(const CoordinatorOptions& options, const std::string& holder);
  absl::Status Serve(const CoordinatorOptions& options, Clock* clock);
  absl::Status StartStorageGrants(const CoordinatorOptions& options, Clock* clock);
  absl::Status OpenExperts(const CoordinatorOptions& options, Clock* clock);
  rpc::Guard* guard() const;  // null: every caller may make every call
  bool ReadWeights(const std::string& uri, const std::string& digest, ExpertRegistry::WeightsCallback done);

  // In order of construction; destroyed in reverse.
  std::unique_ptr<metrics::Registry> registry_;
  std::unique_ptr<CoreMetrics> metrics_;
  std::unique_ptr<Standby> standby_;  // null once this one serves
  std::unique_ptr<storage::BlobStore> blobs_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<ExpertRegistryMetrics> experts_metrics_;
  std::unique_ptr<ExpertRegistry> experts_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<OpenWatches> watches_;
  std::unique_ptr<Executor> core_thread_;
  std::unique_ptr<Executor> blob_thread_;
  std::unique_ptr<StorageGrants> storage_grants_;  // null: islands use their own keys
  std::shared_ptr<const rpc::Security> security_;
  std::unique_ptr<JobServiceImpl> job_service_;
  std::unique_ptr<IslandServiceImpl> island_service_;
  std::unique_ptr<ModelServiceImpl> model_service_;
  std::unique_ptr<AdminServiceImpl> admin_service_;
  std::unique_ptr<ServingServiceImpl> serving_service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<metrics::Exposer> exposer_;
};

}  // namespace atl::coordinator
