// The known expert servers, by their heartbeats. Pure; `now` is monotonic time since an arbitrary start.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/placement/hosted_network.h"

namespace atl::serving {

using placement::HostedNetwork;
using placement::NetworkState;

struct ExpertServer {
  std::string server_id;
  std::string incarnation;  // of the process's start
  std::string address;
  std::string fingerprint;
  int32_t slots = 1;
  int64_t memory_bytes = 0;  // 0: no limit
  std::vector<HostedNetwork> networks;
  // The only subject that may call for the server while it is known; empty: every subject that is allowed for its name.
  std::string owner;
  bool operator==(const ExpertServer&) const = default;
};

inline constexpr absl::Duration kHeartbeatInterval = absl::Seconds(2);
// A server is forgotten after this silence.
inline constexpr absl::Duration kServerSilence = absl::Seconds(7);
inline constexpr size_t kMaxServers = 4096;

// Not thread-safe.
class ExpertServers {
 public:
  // Returns whether anything changed that routers see. A restarted server replaces the previous process at once, whose
  // late calls then get ABORTED (STALE_INCARNATION). An older sequence number of the same process changes nothing.
  // INVALID_ARGUMENT (INVALID_EXPERT_SERVER) names the field; RESOURCE_EXHAUSTED (TOO_MANY_SERVERS). PERMISSION_DENIED
  // (EXPERT_SERVER_NOT_YOURS) if another owner's server of that name is known; an empty owner replaces it.
  absl::StatusOr<bool> TakeHeartbeat(absl::Duration now, const ExpertServer& server, int64_t sequence);
  // Forgets a server that reports its end; returns whether it was known. Its late calls get ABORTED
  // (STALE_INCARNATION). PERMISSION_DENIED (EXPERT_SERVER_NOT_YOURS) as above.
  absl::StatusOr<bool> Leave(const ExpertServer& server);
  // Forgets silent servers and returns their ids.
  std::vector<std::string> Expire(absl::Duration now);
  // Returns when the next server would be forgotten; InfiniteDuration without servers.
  absl::Duration NextExpiry() const;

  std::vector<const ExpertServer*> servers() const;  // by id
  size_t size() const { return known_.size(); }

 private:
  struct Known {
    ExpertServer server;
    int64_t sequence = 0;
    absl::Duration heard;
  };

  void Replace(const std::string& incarnation);

  std::map<std::string, Known> known_;
  std::deque<std::string> replaced_;  // incarnations, the newest last
};

}  // namespace atl::serving
