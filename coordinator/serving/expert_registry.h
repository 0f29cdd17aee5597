// The coordinator's registry of expert servers. It takes heartbeats and routers' reports, decides with
// coordinator/serving which server hosts which networks, and informs servers, routers and operators. Knows neither
// proto nor gRPC.
//
// Volatile: a restart loses all of it. Nothing is decided until servers and routers had time to report again, so that
// no server loads or drops anything because of a restart.
//
// Not thread-safe: owned by the core's executor, or by a test. Nothing blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "coordinator/core/watch_list.h"
#include "coordinator/serving/expert_servers.h"
#include "coordinator/serving/hosting_plan.h"
#include "coordinator/serving/router_reports.h"
#include "coordinator/store/store.h"

namespace atl::coordinator {

struct ExpertRegistryOptions {
  int32_t replicas = 2;  // servers per network; hot networks have more
  // Least time between two decisions, and between two messages of one watch.
  absl::Duration watch_interval = absl::Milliseconds(100);
};

struct ExpertRegistryMetrics {
  // `registry` must outlive it.
  explicit ExpertRegistryMetrics(metrics::Registry* registry);

  metrics::Gauge* servers;
  metrics::Gauge* routers;
  metrics::Gauge* assigned;
  metrics::Gauge* unplaced;
  metrics::Gauge* lacking_bytes;
  metrics::Gauge* over_memory_bytes;
  metrics::Counter* index_failures;
};

struct AssignedNetwork {
  NetworkId network;
  std::string uri;  // folder that holds the version's model_index.json
};

struct ServerHeartbeatAnswer {
  std::vector<AssignedNetwork> assigned;
  absl::Duration interval;
  // The registry has not decided for this server yet: it keeps its networks.
  bool undecided = false;
};

// The whole state that watches send.
struct ServersView {
  std::vector<serving::ExpertServer> servers;  // by id
  serving::HostingPlan plan;
};

class ExpertRegistry {
 public:
  using WeightsCallback = std::function<void(absl::StatusOr<serving::VersionWeights>)>;
  // Begins to read a version's weights from its folder's index and returns at once. The owner calls `done` later.
  // Returns false if `done` will never be called.
  using ReadWeights = std::function<bool(const std::string& uri, const std::string& digest, WeightsCallback done)>;
  // Called inside Tick and EndWatches; must not call back. `last`: no further call follows.
  using WatchCallback = std::function<void(const absl::StatusOr<std::shared_ptr<const ServersView>>&, bool last)>;

  // `settles`: models were published before, so there may be servers. `clock` and `metrics` must outlive the registry.
  ExpertRegistry(ExpertRegistryOptions options, bool settles, Clock* clock, ExpertRegistryMetrics* metrics,
                 ReadWeights read_weights);

  // Takes the current state of a model.
  void TakeModel(const store::Model& model);

  // Errors as of ExpertServers::TakeHeartbeat. Returns the networks that the server must host from now on.
  absl::StatusOr<ServerHeartbeatAnswer> Heartbeat(const serving::ExpertServer& server, int64_t sequence, bool leaving);
  // Errors as of RouterReports::Take. Returns when the next report is expected.
  absl::StatusOr<absl::Duration> ReportRouting(const serving::RoutingReport& report);

  // Sends the current state at the next Tick, and then every change. Returns a ticket for CancelWatch.
  int64_t WatchServers(WatchCallback send);
  void CancelWatch(int64_t ticket);
  // Ends every watch with UNAVAILABLE (COORDINATOR_STOPPING).
  void EndWatches();

  // Forgets silent servers and routers, decides, sends. The owner must call it when NextWake (on the clock's monotonic
  // time) is reached and after other calls; an earlier call is harmless.
  void Tick();
  absl::Duration NextWake() const;

 private:
  struct Weights {
    absl::StatusOr<serving::VersionWeights> known = absl::UnavailableError("");
    bool asked = false;  // whether `known` is an answer
    absl::Duration next_try = absl::ZeroDuration();
    int64_t failures = 0;  // to read it, in a row
  };

  absl::Duration Now() const { return clock_.Monotonic(); }
  void NoteFailures(const serving::ExpertServer& server);
  void ForgetTheSilent(absl::Duration now);
  void TakeHeat(absl::Duration now);

  // Decides again if something changed or enough time passed, and the last decision is an interval ago.
  void Refresh();
  absl::Duration NextRefresh() const { return news_ ? not_before_ : std::max(look_again_, not_before_); }
  serving::VersionFacts GatherVersionFacts(absl::Duration now);
  void BeginReads(absl::Duration now, const std::vector<serving::WantedVersion>& wanted);
  void TakeWeights(const std::string& digest, absl::StatusOr<serving::VersionWeights> weights);
  void TakePlan(serving::HostingPlan plan);
  void SendDueWatches();

  const ExpertRegistryOptions options_;
  Clock& clock_;
  ExpertRegistryMetrics& metrics_;
  const ReadWeights read_weights_;
  absl::Duration settled_at_;

  std::map<std::string, serving::PublishedModel> models_;
  serving::ExpertServers servers_;
  serving::RouterReports routers_;
  // False until the first server comes, and after the last one left in order: then no network counts as lacking.
  bool expects_servers_ = false;
  std::map<std::pair<std::string, NetworkId>, absl::Duration> failures_;  // until when they are remembered
  std::map<std::string, Weights> weights_;                                // by digest, of wanted versions
  std::map<std::string, absl::Duration> ready_since_;                     // serving versions, by model
  std::map<serving::VersionName, std::vector<int64_t>> heat_;
  bool heat_news_ = false;
  absl::Duration heat_due_ = absl::ZeroDuration();

  bool news_ = true;
  absl::Duration not_before_ = absl::ZeroDuration();  // the next decision
  absl::Duration look_again_ = absl::ZeroDuration();  // when time alone changes what is decided
  std::map<std::string, std::string> uris_;           // by digest, of wanted versions
  serving::HostingPlan plan_;

  int64_t next_ticket_ = 1;
  WatchList watches_;
  std::map<int64_t, WatchCallback> callbacks_;
};

}  // namespace atl::coordinator
