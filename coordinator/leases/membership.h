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

// What a request_id may be long, of any call: a UUID takes 36.
inline constexpr size_t kMaxRequestIdBytes = 64;

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
  // When this incarnation, with these capabilities, was written to the store.
  absl::Time register_time = absl::InfinitePast();
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

// OK for what a caller may give as request_id, also nothing; INVALID_ARGUMENT (INVALID_REQUEST_ID).
absl::Status CheckRequestId(std::string_view request_id);

struct RegisterDecision {
  Island island;
  // The leases of the incarnation before end at once.
  bool releases_leases = false;
  // Something changed: the row must be written before the answer.
  bool durable_change = false;
  std::string reason;
};

// `known` is null for an island never seen. The same request_id gets the same incarnation; any other one the next.
// INVALID_ARGUMENT (INVALID_ISLAND_ID, INVALID_CAPABILITIES, INVALID_REQUEST_ID) for a request
// that can never be served (texts are bounded, each: the store keeps them), FAILED_PRECONDITION (PROTOCOL_UNSUPPORTED)
// when island and coordinator share no protocol version.
absl::StatusOr<RegisterDecision> DecideRegister(const Island* known, std::string_view island_id,
                                                std::string_view request_id, const Capabilities& capabilities,
                                                absl::Duration now);

// How long the island was not heard, as far as is known: by its last call since the coordinator started at `start`,
// else by its registration, and not at all before islands had an hour for their first call. `wall` is the time at
// `now`.
absl::Duration SilenceOf(const Island& island, absl::Duration start, absl::Duration now, absl::Time wall);

// OK for the island's newest incarnation; NOT_FOUND (ISLAND_UNKNOWN) when it must register first; ABORTED
// (STALE_INCARNATION) when a newer process has taken its place.
absl::Status CheckIncarnation(const Island* known, std::string_view island_id, int64_t incarnation);

}  // namespace atl::leases
