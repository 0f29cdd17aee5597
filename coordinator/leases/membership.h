// Islands and their incarnations. Pure decisions; `now` is monotonic time since an arbitrary start.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace atl::leases {

// The limit on the length of a request_id, for any call: a UUID takes 36.
inline constexpr size_t kMaxRequestIdBytes = 64;

// An inclusive range.
struct VersionRange {
  int32_t min = 0;
  int32_t max = 0;
  bool operator==(const VersionRange&) const = default;
};

// Whether the ranges share a version.
bool Overlap(const VersionRange& a, const VersionRange& b);

// The properties that an island reports about itself.
struct Capabilities {
  std::string build;
  VersionRange protocol{1, 1};
  VersionRange format{1, 1};
  int32_t ranks = 1;
  std::string device_kind = "cpu";
  std::string device_name;
  int64_t memory_bytes_per_rank = 0;
  std::map<std::string, std::string> labels;
  bool operator==(const Capabilities&) const = default;
};

struct Island {
  std::string island_id;
  int64_t incarnation = 0;
  // The request of the process start that created this incarnation.
  std::string request_id;
  Capabilities capabilities;
  // Volatile: the time of the island's last call, and the newest heartbeat's sequence number.
  absl::Duration last_seen = absl::ZeroDuration();
  int64_t heartbeat_sequence = 0;
  // The reason why the island is drained, so that it is granted no task; empty: not drained. Durable across
  // incarnations.
  std::string drain_reason;
  // When this incarnation, with these capabilities, was written to the store.
  absl::Time register_time = absl::InfinitePast();
};

// The activity of an island, for display.
enum class IslandActivity : uint8_t {
  kIdle = 1,
  kBusy,
  kDraining,  // drained, and still at its task
  kDrained,
  kLost,  // no call for a lease's duration, or none yet since the coordinator started
};

IslandActivity ActivityOf(const Island& island, bool holds_lease, absl::Duration now, absl::Duration lease_duration);

// Checks a request_id, which may be empty; INVALID_ARGUMENT (INVALID_REQUEST_ID).
absl::Status CheckRequestId(std::string_view request_id);

struct RegisterDecision {
  Island island;
  // The leases of the previous incarnation end at once.
  bool releases_leases = false;
  // A change that must be written to the store before the answer.
  bool durable_change = false;
  std::string reason;
};

// `known` is null for an unknown island. The same request_id gets the same incarnation; any other one the next.
// INVALID_ARGUMENT (INVALID_ISLAND_ID, INVALID_CAPABILITIES, INVALID_REQUEST_ID) for a request that can never be
// served; each text is bounded, because the store keeps it. FAILED_PRECONDITION (PROTOCOL_UNSUPPORTED) when island and
// coordinator share no protocol version.
absl::StatusOr<RegisterDecision> DecideRegister(const Island* known, std::string_view island_id,
                                                std::string_view request_id, const Capabilities& capabilities,
                                                absl::Duration now);

// Returns how long the island has been silent: since its last call after the coordinator started at `start`, else since
// its registration. Zero until islands have had an hour after `start` for their first call. `wall` is the time at
// `now`.
absl::Duration SilenceOf(const Island& island, absl::Duration start, absl::Duration now, absl::Time wall);

// Returns OK for the island's newest incarnation; NOT_FOUND (ISLAND_UNKNOWN) when it must register first; ABORTED
// (STALE_INCARNATION) when a newer process has replaced it.
absl::Status CheckIncarnation(const Island* known, std::string_view island_id, int64_t incarnation);

}  // namespace atl::leases
