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

// Inclusive.
struct VersionRange {
  int32_t min = 0;
  int32_t max = 0;
  bool operator==(const VersionRange&) const = default;
};

// Whether the ranges share a version.
bool Overlap(const VersionRange& a, const VersionRange& b);

// What an island says that it is.
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
  // Of the process start that this incarnation belongs to.
  std::string request_id;
  Capabilities capabilities;
  // Volatile: when the island last called, and the newest heartbeat's sequence number.
  absl::Duration last_seen = absl::ZeroDuration();
  int64_t heartbeat_sequence = 0;
  // Why it is granted nothing; empty: it is not drained. Durable, whatever incarnation.
  std::string drain_reason;
};

// What an island is at, for people.
enum class IslandActivity : uint8_t {
  kIdle = 1,
  kBusy,
  kDraining,  // drained, and still at its task
  kDrained,
  kLost,  // not heard for a lease's duration, or not yet since the coordinator started
};

IslandActivity ActivityOf(const Island& island, bool holds_lease, absl::Duration now, absl::Duration lease_duration);

struct MembershipOptions {
  // What this coordinator speaks and what its tasks' files need.
  VersionRange protocol{1, 1};
  VersionRange format{1, 1};
};

struct RegisterDecision {
  Island island;
  // The leases of the incarnation before end at once.
  bool releases_leases = false;
  // Something changed: the row must be written before the answer.
  bool durable_change = false;
  std::string reason;
};

// `known` is null for an island never seen. The same request_id gets the same incarnation; any other one the next.
// INVALID_ARGUMENT (INVALID_ISLAND_ID, INVALID_CAPABILITIES, REQUEST_ID_REQUIRED) for a request that can never be
// served, FAILED_PRECONDITION (PROTOCOL_UNSUPPORTED) when island and coordinator share no protocol version.
absl::StatusOr<RegisterDecision> DecideRegister(const Island* known, std::string_view island_id,
                                                std::string_view request_id, const Capabilities& capabilities,
                                                absl::Duration now, const MembershipOptions& options);

// OK for the island's newest incarnation; NOT_FOUND (ISLAND_UNKNOWN) when it must register first; ABORTED
// (STALE_INCARNATION) when a newer process has taken its place.
absl::Status CheckIncarnation(const Island* known, std::string_view island_id, int64_t incarnation);

}  // namespace atl::leases
