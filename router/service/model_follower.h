// Keeps the engine on the versions that the coordinator's serving rows name: watches ModelService, loads a new version
// beside the old one, switches when it is ready, and goes on with the last known one while the coordinator is away.
//
// Three threads, joined by the destructor: one reads the watch stream (again and again, with backoff), one carries out
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

// Where a published version lies.
struct PublishedVersion {
  std::string model;
  std::string version;
  std::string uri;
  std::string digest;
};

// A version whose networks of this router are loaded.
struct LoadedVersion {
  std::shared_ptr<const ServedVersion> served;
  std::vector<NetworkId> remote;  // networks that expert servers evaluate
  int64_t weight_bytes = 0;       // of all its networks
  int64_t own_weight_bytes = 0;   // of those that this router evaluates
};

// What became of a version so far.
struct FollowedVersion {
  std::string model;
  std::string version;
  VersionState state = VersionState::kLoading;
  bool wanted = false;  // by the serving row
  bool pinned = false;
  int64_t requests = 0;      // that are queued or sampled with it
  int64_t weight_bytes = 0;  // as in LoadedVersion; 0 until it is loaded
  int64_t own_weight_bytes = 0;
  std::string waits_for;  // kReady: what keeps it from serving; kFailed: why it could not be loaded
};

// What a router has of all models, and what weights may take of its memory.
struct RouterVersions {
  std::vector<FollowedVersion> versions;
  int64_t memory_budget_bytes = 0;  // over all devices; 0: no limit
};

struct FollowerOptions {
  // Models to serve; empty: every model that the coordinator knows.
  std::vector<std::string> models;
  // Before a version that could not be loaded is tried again; at once the longest where the files are damaged.
  BackoffLimits load_backoff{.first = absl::Seconds(1), .longest = absl::Minutes(1)};
  // Between two tries to watch the coordinator.
  BackoffLimits backoff = rpc::WatchLoop::Options().backoff;
  // Versions that stay loaded, for requests that name them, by model.
  std::map<std::string, std::vector<std::string>> pinned;
  // How long requests of a version that was replaced may still take; they are ended then (VERSION_DRAINED).
  absl::Duration drain_deadline = absl::Minutes(10);
};

class ModelFollower {
 public:
  // Returns the version when its networks of this router can be asked for; they may be taken away when the last
  // reference to `served` is gone.
  using Loader = std::function<absl::StatusOr<LoadedVersion>(const PublishedVersion&)>;
  struct Callbacks {
    // What there is on expert servers of the networks that a version needs of them: asked again and again, and must not
    // block. Null: versions need none.
    std::function<ServerNeeds(const std::vector<NetworkId>& networks)> server_needs;
    // A version serves from now on.
    std::function<void(const std::string& model, const std::string& version, int64_t generation)> on_serving;
    std::function<void(const PublishedVersion& version, const absl::Status& status)> on_load_failed;
    // A wanted version that is loaded waits for servers that host so many networks; 0: no longer.
    std::function<void(const std::string& model, int64_t networks)> on_waiting;
    std::function<void(bool connected)> on_connection;
  };

  // `engine` and `clock` must outlive the follower. The callbacks run on its threads.
  ModelFollower(FollowerOptions options, std::shared_ptr<grpc::Channel> channel, Loader loader, Engine* engine,
                Clock* clock, Callbacks callbacks);
  ~ModelFollower();
  ModelFollower(const ModelFollower&) = delete;
  ModelFollower& operator=(const ModelFollower&) = delete;

  // Begins no load and no switch any more; a load under way goes on. Thread-safe; waits for no load.
  void Stop();

  // `server_needs` may answer otherwise now: versions that wait are looked at. Thread-safe; does not block.
  void LookAgain();
  // All versions that are loading, loaded or could not be loaded. Thread-safe.
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
  // Carries out one decision for one model; false when there was none.
  bool RollOnce();
  // Returns what it dropped, to be freed without the lock.
  LoadedVersion CarryOut(const std::string& model, Followed* followed, const RollDecision& decision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteWaiting(const std::string& model, Followed* followed, const RollDecision& decision)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoadLoop();
  void LoadVersion(const PublishedVersion& version);
  // Those of the model's pinned versions whose files are known.
  std::vector<std::string> PinnedOf(const std::string& model, const Followed& followed) const;
  void Switch(const std::string& model, Followed* followed, const std::string& version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Brings the versions' requests and servers up to date.
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
