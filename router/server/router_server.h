// The router process without its command line: engine, gRPC server, metrics and, with a coordinator, the follower.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/auth/security.h"
#include "common/metrics/exposer.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "common/storage/blob_store.h"
#include "inference/local/local_experts.h"
#include "router/engine/engine.h"
#include "router/remote/expert_directory.h"
#include "router/remote/remote_experts.h"
#include "router/rest/rest_server.h"
#include "router/server/router_metrics.h"
#include "router/server/routing_reports.h"
#include "router/service/caller_quotas.h"
#include "router/service/model_follower.h"
#include "router/service/sample_service.h"

namespace atl::router {

// The networks of a version that a router evaluates itself, whatever servers do. kAuto: all while there is no expert
// server, else the router network; decided when a version is loaded.
enum class OwnNetworks { kAuto, kAll, kRouter, kNone };

struct RouterOptions {
  // Either a coordinator and its blob store, or a folder with one published model.
  std::string coordinator;
  std::string blob_store;
  std::string model_dir;
  std::vector<std::string> models;  // with a coordinator: the models to serve; empty: all
  // Versions to keep loaded beside the serving one, by model.
  std::map<std::string, std::vector<std::string>> pinned;
  std::string listen = "127.0.0.1:0";
  std::string metrics_listen;  // empty: none
  // Serves metrics in plain text to every client, wherever it listens.
  bool metrics_open = false;
  // For the router's own port and its calls; null: plain text, without authentication.
  std::shared_ptr<const rpc::Security> security;
  RestOptions rest = {.listen = ""};  // no address: none
  int threads = 1;
  // Expert servers that evaluate networks, "host:port", beside those that the coordinator lists.
  std::vector<std::string> expert_servers;
  OwnNetworks own_networks = OwnNetworks::kAuto;
  std::string device = "cpu";
  int64_t memory_budget_bytes = 0;  // of weights, per device; 0: no limit
  EngineOptions engine;
};

// Owns every thread of the process but main's. Thread-safe.
class RouterServer {
 public:
  // INVALID_ARGUMENT names the option; FAILED_PRECONDITION (TOKEN_NEEDS_TLS) if a token would be sent in plain text to
  // the coordinator or a server; UNAVAILABLE when an address cannot be bound; with a model folder, also errors of
  // LocalExperts. With a coordinator it starts whether or not the coordinator is reachable. Until a version is loaded,
  // requests get UNAVAILABLE (FAILED_PRECONDITION while it knows of no version) and health is NOT_SERVING.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(const RouterOptions& options);
  ~RouterServer();  // Shutdown without grace

  const std::string& address() const { return server_->address(); }
  int port() const { return server_->port(); }
  // Empty without REST.
  std::string rest_address() const { return rest_ == nullptr ? "" : rest_->address(); }
  // All metrics, in Prometheus' text format.
  std::string MetricsText() {
    metrics_.Refresh();
    return registry_->Text();
  }

  // Sets health to NOT_SERVING and rejects new requests. Queued and running requests get `grace` to finish, then they
  // are cancelled. Then waits for a version that is being loaded. Safe to call twice.
  void Shutdown(absl::Duration grace);

 private:
  explicit RouterServer(const RouterOptions& options);
  absl::Status LoadFolder(const std::string& folder);
  absl::Status Follow(const RouterOptions& options);
  // Loads the networks that this router evaluates itself, and returns those that it leaves to servers. Errors of
  // LocalExperts; UNAVAILABLE (SERVERS_UNKNOWN).
  absl::StatusOr<LoadedVersion> Load(const std::string& folder_uri, const std::string& digest);
  absl::StatusOr<OwnNetworks> DecideOwnNetworks();
  // May be called on any thread.
  RouterVersions Versions();
  void SetServing();

  const std::shared_ptr<const rpc::Security> security_;
  CallerQuotas quotas_;
  const std::unique_ptr<metrics::Registry> registry_;
  RouterMetrics metrics_;
  // Must outlive the engine, whose versions release their networks when they are destroyed.
  std::unique_ptr<storage::BlobStore> store_;
  std::unique_ptr<LocalExperts> experts_;
  Engine engine_;
  SampleService service_;
  OwnNetworks own_networks_ = OwnNetworks::kAuto;
  std::unique_ptr<RemoteExperts> remote_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<RestServer> rest_;
  std::unique_ptr<metrics::Exposer> exposer_;
  std::unique_ptr<ExpertDirectory> directory_;
  std::unique_ptr<ModelFollower> follower_;
  absl::Mutex follower_mutex_;
  ModelFollower* followed_ ABSL_GUARDED_BY(follower_mutex_) = nullptr;  // follower_, for calls
  std::optional<int64_t> server_watcher_;                               // of remote_, for follower_
  std::unique_ptr<RoutingReports> reports_;
};

}  // namespace atl::router
