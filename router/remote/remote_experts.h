// The expert servers of a router as lanes: the configured ones, and those that the coordinator lists. Reports which
// networks of a version they host.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "grpcpp/security/credentials.h"
#include "inference/lane.h"
#include "inference/watchers.h"
#include "router/engine/engine.h"
#include "router/policy/server_lanes.h"
#include "router/policy/version_roll.h"

namespace atl::router {

// The coordinator's list of expert servers.
struct ServerList {
  // A version with networks that fit on no server.
  struct Shortage {
    std::string model;
    std::string version;
    int64_t bytes_needed = 0;
    int64_t bytes_lacking = 0;
    std::string why;
  };
  std::vector<ListedServer> servers;
  std::vector<Shortage> shortages;
};

// Thread-safe. Owns one thread, joined by the destructor. It adds lanes to the engine, removes them, and releases those
// that the engine no longer uses, which may block.
class RemoteExperts {
 public:
  // Makes a lane of this name to the server at `address`; the lane calls `hosting` after its hosted networks changed.
  using MakeLane = std::function<std::shared_ptr<ExpertLane>(const std::string& name, const std::string& address,
                                                             std::function<void()> hosting)>;
  // Makes RemoteLanes with the clock, which must outlive them.
  static MakeLane Connect(Clock* clock, std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

  struct Options {
    std::vector<std::string> addresses;  // of the configured servers
  };
  // `engine` and `clock` must outlive this object. Lanes to the configured addresses are added at once.
  RemoteExperts(Options options, MakeLane make_lane, Engine* engine, Clock* clock);
  ~RemoteExperts();
  RemoteExperts(const RemoteExperts&) = delete;
  RemoteExperts& operator=(const RemoteExperts&) = delete;

  // Takes the coordinator's complete current list.
  void TakeList(ServerList list);

  // Returns which of these networks of one version are missing; `without_servers` when there is no server at all.
  ServerNeeds Needs(const std::vector<NetworkId>& networks) const;
  // Whether there is any server: configured, listed or still with a lane. Without configured ones, blocks until the
  // coordinator's first list. UNAVAILABLE (SERVERS_UNKNOWN) when none came within `timeout`, or when Stop was called.
  absl::StatusOr<bool> AwaitAnyServer(absl::Duration timeout);
  // Waits until a server hosts each of these networks. UNAVAILABLE (EXPERTS_MISSING) names those that no server hosts
  // after `timeout`, or when Stop was called.
  absl::Status AwaitHosted(const std::vector<NetworkId>& networks, absl::Duration timeout);
  // Ends present and future waits.
  void Stop();

  // `changed` is called without a lock whenever the answer of Needs may have changed; it must not block.
  int64_t Watch(std::function<void()> changed);
  // Returns when no call of the watcher is running any more.
  void Unwatch(int64_t watcher);

  // Returns the names of the present lanes.
  std::vector<std::string> lane_names() const;

 private:
  struct Shared;
  struct Found {
    ListedServer server;
    std::shared_ptr<ExpertLane> lane;
  };

  void Run();
  // Applies DecideLanes.
  void ChangeLanes();
  std::shared_ptr<ExpertLane> AddLane(const std::string& name, const std::string& address);
  bool stopping() const;
  bool AnyServer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const MakeLane make_lane_;
  Engine* const engine_;
  Clock* const clock_;
  const std::shared_ptr<Shared> shared_;  // shared with lanes, which may outlive this

  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<ExpertLane>> named_ ABSL_GUARDED_BY(mutex_);  // by address
  std::map<std::string, Found> found_ ABSL_GUARDED_BY(mutex_);                        // by server_id
  std::optional<ServerList> list_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
