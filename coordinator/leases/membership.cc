#include "coordinator/leases/membership.h"

#include <algorithm>
#include <cctype>

#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::leases {
namespace {

constexpr size_t kMaxIslandIdLength = 128;
constexpr size_t kMaxLabels = 64;
// Bytes of all names and values together.
constexpr size_t kMaxLabelBytes = 4096;

bool IsIslandId(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIslandIdLength && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

absl::Status CheckRange(std::string_view path, const VersionRange& range) {
  if (range.min >= 1 && range.min <= range.max) return absl::OkStatus();
  return FieldError(path, "INVALID_CAPABILITIES",
                    fmt::format("expected 1 <= min <= max, found min {} and max {}", range.min, range.max));
}

absl::Status CheckTexts(const Capabilities& capabilities) {
  struct Limit {
    const char* field;
    const std::string& text;
    size_t most;
  };
  for (const Limit& limit : {Limit{"capabilities.build", capabilities.build, 128},
                             Limit{"capabilities.device_name", capabilities.device_name, 256}}) {
    if (limit.text.size() <= limit.most) continue;
    return FieldError(limit.field, "INVALID_CAPABILITIES",
                      fmt::format("expected at most {} bytes, found {}", limit.most, limit.text.size()));
  }
  size_t bytes = 0;
  for (const auto& [name, value] : capabilities.labels) bytes += name.size() + value.size();
  if (bytes <= kMaxLabelBytes) return absl::OkStatus();
  return FieldError("capabilities.labels", "INVALID_CAPABILITIES",
                    fmt::format("expected at most {} bytes of names and values, found {}", kMaxLabelBytes, bytes));
}

absl::Status CheckCapabilities(const Capabilities& capabilities) {
  ATOLL_RETURN_IF_ERROR(CheckRange("capabilities.protocol", capabilities.protocol));
  ATOLL_RETURN_IF_ERROR(CheckRange("capabilities.format", capabilities.format));
  if (capabilities.ranks < 1) {
    return FieldError("capabilities.ranks", "INVALID_CAPABILITIES",
                      fmt::format("expected at least 1, found {}", capabilities.ranks));
  }
  if (capabilities.memory_bytes_per_rank < 0) {
    return FieldError("capabilities.memory_bytes_per_rank", "INVALID_CAPABILITIES",
                      fmt::format("expected at least 0, found {}", capabilities.memory_bytes_per_rank));
  }
  if (capabilities.device_kind != "cpu" && capabilities.device_kind != "cuda") {
    return FieldError("capabilities.device_kind", "INVALID_CAPABILITIES",
                      fmt::format("expected 'cpu' or 'cuda', found {}", Quoted(capabilities.device_kind)));
  }
  if (capabilities.labels.size() > kMaxLabels) {
    return FieldError("capabilities.labels", "INVALID_CAPABILITIES",
                      fmt::format("expected at most {}, found {}", kMaxLabels, capabilities.labels.size()));
  }
  return CheckTexts(capabilities);
}

}  // namespace

absl::Status CheckRequestId(std::string_view request_id) {
  if (request_id.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return FieldError("request_id", "INVALID_REQUEST_ID",
                    fmt::format("expected a UUID, or another text of at most {} bytes, found {} bytes",
                                kMaxRequestIdBytes, request_id.size()));
}

bool Overlap(const VersionRange& a, const VersionRange& b) {
  return a.min <= b.max && b.min <= a.max;
}

IslandActivity ActivityOf(const Island& island, bool holds_lease, absl::Duration now, absl::Duration lease_duration) {
  const bool heard = island.last_seen > absl::ZeroDuration() && now - island.last_seen <= lease_duration;
  if (!heard) return IslandActivity::kLost;
  if (!island.drain_reason.empty()) return holds_lease ? IslandActivity::kDraining : IslandActivity::kDrained;
  return holds_lease ? IslandActivity::kBusy : IslandActivity::kIdle;
}

absl::StatusOr<RegisterDecision> DecideRegister(const Island* known, std::string_view island_id,
                                                std::string_view request_id, const Capabilities& capabilities,
                                                absl::Duration now, const MembershipOptions& options) {
  if (!IsIslandId(island_id)) {
    return FieldError("island_id", "INVALID_ISLAND_ID",
                      fmt::format("expected 1 to {} letters, digits, '-', '_' or '.', found {}", kMaxIslandIdLength,
                                  Quoted(island_id)));
  }
  if (request_id.empty()) {
    return FieldError("request_id", "REQUEST_ID_REQUIRED", "expected an id of this process's start, found none");
  }
  ATOLL_RETURN_IF_ERROR(CheckRequestId(request_id));
  ATOLL_RETURN_IF_ERROR(CheckCapabilities(capabilities));
  if (!Overlap(capabilities.protocol, options.protocol)) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "PROTOCOL_UNSUPPORTED",
        fmt::format("island {}: expected a protocol version in [{}, {}], found [{}, {}]", island_id,
                    options.protocol.min, options.protocol.max, capabilities.protocol.min, capabilities.protocol.max));
  }
  RegisterDecision decision;
  decision.island = Island{std::string(island_id), 1, std::string(request_id), capabilities, now, 0, ""};
  if (known == nullptr) {
    decision.durable_change = true;
    decision.reason = fmt::format("island {} is new", island_id);
    return decision;
  }
  decision.island.drain_reason = known->drain_reason;
  decision.island.register_time = known->register_time;
  if (known->request_id == request_id) {
    decision.island.incarnation = known->incarnation;
    decision.island.heartbeat_sequence = known->heartbeat_sequence;
    decision.durable_change = known->capabilities != capabilities;
    decision.reason = fmt::format("island {} repeated its registration", island_id);
    return decision;
  }
  decision.island.incarnation = known->incarnation + 1;
  decision.releases_leases = true;
  decision.durable_change = true;
  decision.reason = fmt::format("island {} started again: incarnation {} replaces {}", island_id,
                                decision.island.incarnation, known->incarnation);
  return decision;
}

absl::Duration SilenceOf(const Island& island, absl::Duration start, absl::Duration now, absl::Time wall) {
  constexpr absl::Duration kFirstCall = absl::Hours(1);
  if (island.last_seen > absl::ZeroDuration()) return now - island.last_seen;
  return now - start < kFirstCall ? absl::ZeroDuration() : wall - island.register_time;
}

absl::Status CheckIncarnation(const Island* known, std::string_view island_id, int64_t incarnation) {
  if (known == nullptr) {
    return MakeError(absl::StatusCode::kNotFound, "ISLAND_UNKNOWN",
                     fmt::format("island {} has not registered with this coordinator", island_id));
  }
  if (known->incarnation != incarnation) {
    return MakeError(
        absl::StatusCode::kAborted, "STALE_INCARNATION",
        fmt::format("island {}: expected incarnation {}, found {}", island_id, known->incarnation, incarnation));
  }
  return absl::OkStatus();
}

}  // namespace atl::leases
