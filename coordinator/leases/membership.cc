#include "coordinator/leases/membership.h"

#include <algorithm>
#include <cctype>

#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::leases {
namespace {

// The versions that this coordinator speaks.
constexpr VersionRange kProtocol{1, 1};
constexpr size_t kMaxIslandIdLength = 128;

bool IsIslandId(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIslandIdLength && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

bool IsRange(const VersionRange& range) {
  return range.min >= 1 && range.min <= range.max;
}

absl::Status CheckCapabilities(const Capabilities& c) {
  size_t label_bytes = 0;
  for (const auto& [name, value] : c.labels) label_bytes += name.size() + value.size();
  const auto text = [](const VersionRange& range) { return fmt::format("min {} and max {}", range.min, range.max); };
  struct Rule {
    const char* field;
    bool good;
    std::string expected;
    std::string found;
  };
  const Rule rules[] = {
      {"protocol", IsRange(c.protocol), "1 <= min <= max", text(c.protocol)},
      {"format", IsRange(c.format), "1 <= min <= max", text(c.format)},
      {"ranks", c.ranks >= 1, "at least 1", fmt::to_string(c.ranks)},
      {"memory_bytes_per_rank", c.memory_bytes_per_rank >= 0, "at least 0", fmt::to_string(c.memory_bytes_per_rank)},
      {"device_kind", c.device_kind == "cpu" || c.device_kind == "cuda", "'cpu' or 'cuda'", Quoted(c.device_kind)},
      {"build", c.build.size() <= 128, "at most 128 bytes", fmt::to_string(c.build.size())},
      {"device_name", c.device_name.size() <= 256, "at most 256 bytes", fmt::to_string(c.device_name.size())},
      {"labels", c.labels.size() <= 64, "at most 64", fmt::to_string(c.labels.size())},
      {"labels", label_bytes <= 4096, "at most 4096 bytes of names and values", fmt::to_string(label_bytes)},
  };
  for (const Rule& rule : rules) {
    if (rule.good) continue;
    return FieldError(fmt::format("capabilities.{}", rule.field), "INVALID_CAPABILITIES",
                      fmt::format("expected {}, found {}", rule.expected, rule.found));
  }
  return absl::OkStatus();
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
                                                absl::Duration now) {
  if (!IsIslandId(island_id)) {
    return FieldError("island_id", "INVALID_ISLAND_ID",
                      fmt::format("expected 1 to {} letters, digits, '-', '_' or '.', found {}", kMaxIslandIdLength,
                                  Quoted(island_id)));
  }
  if (request_id.empty()) {
    return FieldError("request_id", "INVALID_REQUEST_ID", "expected an id of this process's start, found none");
  }
  ATOLL_RETURN_IF_ERROR(CheckRequestId(request_id));
  ATOLL_RETURN_IF_ERROR(CheckCapabilities(capabilities));
  if (!Overlap(capabilities.protocol, kProtocol)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "PROTOCOL_UNSUPPORTED",
                     fmt::format("island {}: expected a protocol version in [{}, {}], found [{}, {}]", island_id,
                                 kProtocol.min, kProtocol.max, capabilities.protocol.min, capabilities.protocol.max));
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
