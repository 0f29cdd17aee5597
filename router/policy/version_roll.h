// What to do next about one model's versions: load beside, switch, drain. Pure; stateless, so that calling it again
// after any decision was carried out, or failed, goes on from what is there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::router {

// A row of the coordinator's serving table, as far as it matters here.
struct ServingChoice {
  std::string version;
  int64_t generation = 0;
  bool operator==(const ServingChoice&) const = default;
};

// LOADING -> READY -> SERVING -> DRAINING -> (gone); LOADING -> FAILED; READY and FAILED -> (gone) when no longer
// wanted. A pinned version is OFFERED wherever another would drain: READY -> OFFERED <-> SERVING. READY: what this
// router evaluates itself is loaded; the rest may still lack servers (ServerNeeds).
enum class VersionState { kLoading, kReady, kServing, kOffered, kDraining, kFailed };

// What a version needs of expert servers, and what of it is there.
struct ServerNeeds {
  int32_t networks = 0;          // that servers are to evaluate
  std::vector<int32_t> missing;  // those of them that no server hosts now, ascending
  // By the coordinator's word, where networks lie on no server: what the version takes of all servers' memory, how much
  // of it does not fit there, and why. 0 and empty: it does not say.
  int64_t bytes_needed = 0;
  int64_t bytes_lacking = 0;
  std::string why;
  // No server is left, and the router may evaluate everything itself.
  bool without_servers = false;
  bool operator==(const ServerNeeds&) const = default;
};

struct VersionStatus {
  std::string version;
  VersionState state = VersionState::kLoading;
  int64_t requests = 0;     // that still sample with it
  absl::Duration retry_at;  // kFailed: when another try is due; InfiniteDuration when none can help
  // kDraining: when the requests that are left are ended.
  absl::Duration drain_until = absl::InfiniteDuration();
  ServerNeeds servers;
};

enum class RollAction {
  kNone,
  kWait,  // for expert servers; to be asked again when they change
  kLoad,
  kSwitch,       // it serves requests that name no version
  kOffer,        // it serves requests that name it
  kEndRequests,  // those that a draining version still has
  kDrop,
};

struct RollDecision {
  RollAction action = RollAction::kNone;
  std::string version;
  std::string reason;
};

// At most one action. A version switches only when it is ready and every network that it needs of expert servers is
// hosted there, so the old one serves meanwhile; a draining version is dropped with its last request, which is ended
// when drain_until is over. Ending and dropping come first (they free memory), then the wanted version's switch or
// load, then those of `pinned` versions, which stay beside it for requests that name them; they wait until some version
// serves. One version loads at a time. What waits for servers, none of which is left, is loaded anew where the router
// may do without.
RollDecision DecideRoll(absl::Duration now, const std::optional<ServingChoice>& wanted,
                        const std::vector<VersionStatus>& versions, const std::vector<std::string>& pinned = {});

// What keeps a version from being served, of servers' networks: which, the bytes that lack, and why. Empty: nothing.
std::string DescribeMissing(const ServerNeeds& needs);

// Whether a serving row that was sent replaces the known one. Within a watch a higher generation does. What is sent
// `first` of a model in a watch is where the coordinator stands, and replaces any other: the generations of a store
// that was restored go on from those of its backup.
bool Replaces(const ServingChoice& sent, const std::optional<ServingChoice>& known, bool first);

}  // namespace atl::router
