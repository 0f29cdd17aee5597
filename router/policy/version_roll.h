// Decides the next action on one model's versions: load beside, switch, drain. Pure and stateless: a call after any
// decision was carried out, or failed, continues from the current state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace atl::router {

// The relevant fields of a row of the coordinator's serving table.
struct ServingChoice {
  std::string version;
  int64_t generation = 0;
  bool operator==(const ServingChoice&) const = default;
};

// LOADING -> READY -> SERVING -> DRAINING -> (gone); LOADING -> FAILED; READY and FAILED -> (gone) when no longer
// wanted. A pinned version becomes OFFERED where another would drain: READY -> OFFERED <-> SERVING. READY: the networks
// that this router evaluates itself are loaded; the others may still lack servers (ServerNeeds).
enum class VersionState { kLoading, kReady, kServing, kOffered, kDraining, kFailed };

// The networks that a version needs on expert servers, and those that are missing.
struct ServerNeeds {
  int32_t networks = 0;          // that servers are to evaluate
  std::vector<int32_t> missing;  // those of them that no server hosts now, ascending
  // The coordinator's report if networks fit on no server: the memory that the version takes on all servers, the part
  // that does not fit, and the reason. 0 and empty: not reported.
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
  // kDraining: the time at which the remaining requests are ended.
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

// Returns at most one action. A version switches only when it is ready and every network that it needs is hosted on
// expert servers; the old one serves meanwhile. A draining version is dropped after its last request, which is ended
// when drain_until is over. Ending and dropping come first, because they free memory, then the wanted version's switch
// or load. The `pinned` versions come last: they stay beside it for requests that name them, and wait until some
// version serves. One version loads at a time. A version that waits for servers is loaded again without them if no
// server is left and the router may evaluate everything itself.
RollDecision DecideRoll(absl::Duration now, const std::optional<ServingChoice>& wanted,
                        const std::vector<VersionStatus>& versions, const std::vector<std::string>& pinned = {});

// Describes the missing networks on servers: which, the lacking bytes, and why. Empty if none is missing.
std::string DescribeMissing(const ServerNeeds& needs);

// Whether a received serving row replaces the known one. Within a watch a higher generation does. The `first` row of a
// model in a watch is the coordinator's current state and replaces any other: the generations of a restored store
// continue from those of its backup.
bool Replaces(const ServingChoice& sent, const std::optional<ServingChoice>& known, bool first);

}  // namespace atl::router
