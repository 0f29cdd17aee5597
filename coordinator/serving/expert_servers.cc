#include "coordinator/serving/expert_servers.h"

#include <algorithm>

#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/quoted.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::serving {
namespace {

constexpr size_t kMaxName = 256;
constexpr size_t kMaxNetworks = 10'000;
constexpr size_t kRememberedIncarnations = 256;
// 64 TiB, far more than any server has: sums over all servers and networks do not overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 46;

absl::Status CheckName(const std::string& field, const std::string& text) {
  if (!text.empty() && text.size() <= kMaxName) return absl::OkStatus();
  return FieldError("server." + field, "INVALID_EXPERT_SERVER",
                    fmt::format("expected 1 to {} characters, found {}", kMaxName, text.size()));
}

absl::Status CheckBytes(const std::string& field, int64_t bytes) {
  if (bytes >= 0 && bytes <= kMaxBytes) return absl::OkStatus();
  return FieldError("server." + field, "INVALID_EXPERT_SERVER",
                    fmt::format("expected 0 to {} bytes, found {}", kMaxBytes, bytes));
}

absl::Status CheckNetwork(const std::string& field, const HostedNetwork& hosted) {
  ATOLL_RETURN_IF_ERROR(CheckName(field + ".network.model", hosted.network.model));
  ATOLL_RETURN_IF_ERROR(CheckName(field + ".network.version", hosted.network.version));
  ATOLL_RETURN_IF_ERROR(CheckName(field + ".network.digest", hosted.network.digest));
  return CheckBytes(field + ".bytes", hosted.bytes);
}

absl::Status Check(const ExpertServer& server) {
  ATOLL_RETURN_IF_ERROR(CheckName("server_id", server.server_id));
  ATOLL_RETURN_IF_ERROR(CheckName("incarnation", server.incarnation));
  if (!IsAddress(server.address) || server.address.size() > kMaxName) {
    return FieldError(
        "server.address", "INVALID_EXPERT_SERVER",
        fmt::format("expected HOST:PORT of at most {} characters, found {}", kMaxName, Quoted(server.address)));
  }
  if (server.fingerprint.size() > kMaxName) {
    return FieldError("server.hosting.fingerprint", "INVALID_EXPERT_SERVER",
                      fmt::format("expected at most {} characters, found {}", kMaxName, server.fingerprint.size()));
  }
  ATOLL_RETURN_IF_ERROR(CheckBytes("hosting.memory_bytes", server.memory_bytes));
  if (server.networks.size() > kMaxNetworks) {
    return FieldError("server.hosting.networks", "INVALID_EXPERT_SERVER",
                      fmt::format("expected at most {}, found {}", kMaxNetworks, server.networks.size()));
  }
  for (size_t i = 0; i < server.networks.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(CheckNetwork(fmt::format("hosting.networks[{}]", i), server.networks[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckOwner(const ExpertServer& known, const ExpertServer& server) {
  if (server.owner.empty() || known.owner == server.owner) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, "EXPERT_SERVER_NOT_YOURS",
                   fmt::format("another subject than {} acts for the expert server {}: name it in its entry's "
                               "expert_servers, or choose another --server-id",
                               Quoted(server.owner), Quoted(server.server_id)));
}

}  // namespace

absl::StatusOr<bool> ExpertServers::TakeHeartbeat(absl::Duration now, const ExpertServer& server, int64_t sequence) {
  ATOLL_RETURN_IF_ERROR(Check(server));
  const auto known = known_.find(server.server_id);
  if (known != known_.end()) ATOLL_RETURN_IF_ERROR(CheckOwner(known->second.server, server));
  if (known == known_.end() && known_.size() >= kMaxServers) {
    return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_SERVERS",
                     fmt::format("expected at most {} expert servers, found one more", kMaxServers));
  }
  const bool other = known == known_.end() || known->second.server.incarnation != server.incarnation;
  if (other && std::count(replaced_.begin(), replaced_.end(), server.incarnation) > 0) {
    return MakeError(
        absl::StatusCode::kAborted, "STALE_INCARNATION",
        fmt::format("expert server '{}': this process has left, or another one has taken its place", server.server_id));
  }
  if (!other) {
    Known& same = known->second;
    if (sequence <= same.sequence) return false;
    const bool changed = same.server != server;
    same = {.server = server, .sequence = sequence, .heard = now};
    return changed;
  }
  if (known != known_.end()) Replace(known->second.server.incarnation);
  known_[server.server_id] = {.server = server, .sequence = sequence, .heard = now};
  return true;
}

absl::StatusOr<bool> ExpertServers::Leave(const ExpertServer& server) {
  const auto known = known_.find(server.server_id);
  if (known == known_.end()) return false;
  ATOLL_RETURN_IF_ERROR(CheckOwner(known->second.server, server));
  if (known->second.server.incarnation != server.incarnation) return false;
  Replace(server.incarnation);
  known_.erase(known);
  return true;
}

void ExpertServers::Replace(const std::string& incarnation) {
  replaced_.push_back(incarnation);
  if (replaced_.size() > kRememberedIncarnations) replaced_.pop_front();
}

std::vector<std::string> ExpertServers::Expire(absl::Duration now) {
  std::vector<std::string> gone;
  std::erase_if(known_, [&](const auto& entry) {
    const bool silent = entry.second.heard + kServerSilence <= now;
    if (silent) gone.push_back(entry.first);
    return silent;
  });
  return gone;
}

absl::Duration ExpertServers::NextExpiry() const {
  absl::Duration next = absl::InfiniteDuration();
  for (const auto& [id, known] : known_) next = std::min(next, known.heard + kServerSilence);
  return next;
}

std::vector<const ExpertServer*> ExpertServers::servers() const {
  std::vector<const ExpertServer*> servers;
  for (const auto& [id, known] : known_) servers.push_back(&known.server);
  return servers;
}

}  // namespace atl::serving
