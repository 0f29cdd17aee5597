// Keeps the engine on the versions that the coordinator's serving rows name. Watches ModelService, loads a new version
// beside the old one, switches when it is ready, and continues with the last known version while the coordinator is
// unreachable.
//
// Three threads, joined by the destructor: one reads the watch stream (repeatedly, with backoff), one carries out
// DecideRoll's decisions and never blocks, one blocks in loading, which cannot be interrupted.
// DecideRoll's decisions and waits for nothing, one blocks in loading, which nothing ends early.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "common/base/clock.h"
#include "common/rpc/watch_loop.h"
#include "router/engine/engine.h"
#include "router/policy/version_roll.h"

namespace atl::router {

// A published version and its location.
struct PublishedVersion {
  std::string model;
  std::string version;
  std::string uri;
  std::string digest;
};

// A version whose networks on this router are loaded.
struct LoadedVersion {
  std::shared_ptr<const ServedVersion> served;
  std::vector<NetworkId> remote;  // networks that expert servers evaluate
  int64_t weight_bytes = 0;       // of all its networks
  int64_t own_weight_bytes = 0;   // of those that this router evaluates
};

// The state of a version on this router.
struct FollowedVersion {
  std::string model;
  std::string version;
  VersionState state = VersionState::kLoading;
  bool wanted = false;  // by the serving row
  bool pinned = false;
  int64_t requests = 0;      // that are queued or sampled with it
  int64_t weight_bytes = 0;  // as in LoadedVersion; 0 until it is loaded
  int64_t own_weight_bytes = 0;
  std::string waits_for;  // kReady: why it does not serve yet; kFailed: why it could not be loaded
};

// The versions of all models on a router, and the memory limit for weights.
struct RouterVersions {
  std::vector<FollowedVersion> versions;
  int64_t memory_budget_bytes = 0;  // over all devices; 0: no limit
};

struct FollowerOptions {
  // Models to serve; empty: every model that the coordinator knows.
  std::vector<std::string> models;
  // The delay before a version that could not be loaded is tried again; the longest at once if its files are damaged.
  BackoffLimits load_backoff{.first = absl::Seconds(1), .longest = absl::Minutes(1)};
  // The delay between two tries to watch the coordinator.
  BackoffLimits backoff = rpc::WatchLoop::Options().backoff;
  // Versions that stay loaded, for requests that name them, by model.
  std::map<std::string, std::vector<std::string>> pinned;
  // How long requests of a replaced version may still take; then they are ended (VERSION_DRAINED).
  absl::Duration drain_deadline = absl::Minutes(10);
};

class ModelFollower {
 public:
  // Returns the version when its networks on this router can be evaluated. They may be unloaded when the last reference
  // to `served` is gone.
  using Loader = std::function<absl::StatusOr<LoadedVersion>(const PublishedVersion&)>;
  struct Callbacks {
    // Returns which of the networks that a version needs on expert servers are missing. Called repeatedly, and must not
    // block. Null: versions need none.
    std::function<ServerNeeds(const std::vector<NetworkId>& networks)> server_needs;
    // Called when a version begins to serve.
    std::function<void(const std::string& model, const std::string& version, int64_t generation)> on_serving;
    std::function<void(const PublishedVersion& version, const absl::Status& status)> on_load_failed;
    // A loaded, wanted version waits for servers to host that many networks; 0: no longer.
    std::function<void(const std::string& model, int64_t networks)> on_waiting;
    std::function<void(bool connected)> on_connection;
  };

  // `engine` and `clock` must outlive the follower. The callbacks run on its threads.
  ModelFollower(FollowerOptions options, std::shared_ptr<grpc::Channel> channel, Loader loader, Engine* engine,
                Clock* clock, Callbacks callbacks);
  ~ModelFollower();
  ModelFollower(const ModelFollower&) = delete;
  ModelFollower& operator=(const ModelFollower&) = delete;

  // Prevents new loads and switches; a running load continues. Thread-safe; waits for no load.
  void Stop();

  // Call when the answer of `server_needs` may have changed: checks waiting versions again. Thread-safe; does not
  // block.
  void LookAgain();
  // Returns all versions that are loading, loaded or could not be loaded. Thread-safe.
  std::vector<FollowedVersion> Versions();

 private:
  struct Followed {
    std::optional<ServingChoice> wanted;
    std::map<std::string, PublishedVersion> published;
    std::vector<VersionStatus> versions;
    std::map<std::string, LoadedVersion> loaded;
    std::map<std::string, std::string> load_errors;  // of kFailed
    std::string waits_for;                           // of the wanted version, as it was logged
    std::map<std::string, int64_t> load_failures;    // in a row, by version
  };

  // Reads one stream of all models to its end.
  grpc::Status ReadStream(grpc::ClientContext* context, const std::function<void()>& received);
  // `first`: of this model in this watch.
  void TakeNews(const atlpb::model::v1::Model& model, bool first);

  void RollLoop();
  // Carries out one decision for one model; returns false when there was none.
  bool RollOnce();
  // Returns the dropped version, so that the caller frees it without the lock.
  LoadedVersion CarryOut(const std::string& model, Followed* followed, const RollDecision& decision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteWaiting(const std::string& model, Followed* followed, const RollDecision& decision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoadLoop();
  void LoadVersion(const PublishedVersion& version);
  // Returns the model's pinned versions whose files are known.
  std::vector<std::string> PinnedOf(const std::string& model, const Followed& followed) const;
  void Switch(const std::string& model, Followed* followed, const std::string& version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Updates the versions' request counts and server needs.
  void Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FollowerOptions options_;
  const std::unique_ptr<atlpb::model::v1::ModelService::Stub> stub_;
  const Loader loader_;
  Engine* const engine_;
  Clock* const clock_;
  const Callbacks callbacks_;

  absl::Mutex mutex_;
  std::map<std::string, Followed> models_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> left_out_ ABSL_GUARDED_BY(mutex_);  // models that options_.models has not, as logged
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<PublishedVersion> loads_ ABSL_GUARDED_BY(mutex_);  // to be loaded
  rpc::WatchLoop watch_;
  std::thread roller_;
  std::thread loader_thread_;
};

}  // namespace atl::router
