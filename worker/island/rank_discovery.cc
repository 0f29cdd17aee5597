#include "worker/island/rank_discovery.h"

#include <charconv>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::worker {
namespace {

absl::Status Unclear(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "RANK_UNCLEAR", message);
}

const std::string* Find(const Environment& environment, const std::string& name) {
  const auto it = environment.find(name);
  return it == environment.end() || it->second.empty() ? nullptr : &it->second;
}

absl::StatusOr<int32_t> ParseNumber(std::string_view name, std::string_view text, int32_t least, int32_t most) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return Unclear(fmt::format("{}: expected a number from {} to {}, found '{}'", name, least, most, text));
  }
  return value;
}

// `because` names the variable that makes this one necessary.
absl::StatusOr<std::string> Required(const Environment& environment, const std::string& name,
                                     std::string_view because) {
  const std::string* value = Find(environment, name);
  if (value == nullptr) return Unclear(fmt::format("{} is set, so {} is expected too; it is not set", because, name));
  return *value;
}

constexpr int32_t kMostRanks = 1 << 16;

absl::StatusOr<int32_t> RequiredNumber(const Environment& environment, const std::string& name,
                                       std::string_view because, int32_t least, int32_t most = kMostRanks) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, Required(environment, name, because));
  return ParseNumber(name, text, least, most);
}

absl::StatusOr<int32_t> LeaderPort(const Environment& environment) {
  const std::string* text = Find(environment, "ATOLL_LEADER_PORT");
  if (text == nullptr) return kDefaultLeaderPort;
  return ParseNumber("ATOLL_LEADER_PORT", *text, 1, 65535);
}

absl::StatusOr<RankIdentity> FromTorchrun(const Environment& environment) {
  RankIdentity identity{.source = "torchrun"};
  ATOLL_ASSIGN_OR_RETURN(identity.rank, RequiredNumber(environment, "RANK", "RANK", 0));
  ATOLL_ASSIGN_OR_RETURN(identity.ranks, RequiredNumber(environment, "WORLD_SIZE", "RANK", 1));
  ATOLL_ASSIGN_OR_RETURN(const std::string host, Required(environment, "MASTER_ADDR", "RANK"));
  ATOLL_ASSIGN_OR_RETURN(const int32_t port, RequiredNumber(environment, "MASTER_PORT", "RANK", 1, 65535));
  identity.leader = fmt::format("{}:{}", host, port);
  return identity;
}

// Pod names of a JobSet are "<jobset>-<replicated job>-<job index>-<pod index>", published by a headless service.
absl::StatusOr<RankIdentity> FromJobSet(const Environment& environment, const RankFlags& flags) {
  constexpr char kBecause[] = "JOBSET_NAME";
  RankIdentity identity{.source = "jobset"};
  ATOLL_ASSIGN_OR_RETURN(identity.rank, RequiredNumber(environment, "JOB_COMPLETION_INDEX", kBecause, 0));
  if (flags.ranks.has_value() && Find(environment, "JOBSET_RANKS") == nullptr) {
    identity.ranks = *flags.ranks;
  } else {
    ATOLL_ASSIGN_OR_RETURN(identity.ranks, RequiredNumber(environment, "JOBSET_RANKS", kBecause, 1));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string name, Required(environment, "JOBSET_NAME", kBecause));
  ATOLL_ASSIGN_OR_RETURN(const std::string job, Required(environment, "JOBSET_REPLICATED_JOB", kBecause));
  int32_t job_index = 0;
  if (const std::string* text = Find(environment, "JOBSET_JOB_INDEX"); text != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(job_index, ParseNumber("JOBSET_JOB_INDEX", *text, 0, kMostRanks));
  }
  const std::string* subdomain = Find(environment, "JOBSET_SUBDOMAIN");
  ATOLL_ASSIGN_OR_RETURN(const int32_t port, LeaderPort(environment));
  identity.leader =
      fmt::format("{}-{}-{}-0.{}:{}", name, job, job_index, subdomain != nullptr ? *subdomain : name, port);
  return identity;
}

absl::StatusOr<RankIdentity> FromSlurm(const Environment& environment) {
  constexpr char kBecause[] = "SLURM_PROCID";
  RankIdentity identity{.source = "slurm"};
  ATOLL_ASSIGN_OR_RETURN(identity.rank, RequiredNumber(environment, "SLURM_PROCID", kBecause, 0));
  ATOLL_ASSIGN_OR_RETURN(identity.ranks, RequiredNumber(environment, "SLURM_NTASKS", kBecause, 1));
  std::string host;
  if (const std::string* nodes = Find(environment, "SLURM_JOB_NODELIST"); nodes != nullptr) {
    ATOLL_ASSIGN_OR_RETURN(host, FirstSlurmHost(*nodes));
  } else {
    ATOLL_ASSIGN_OR_RETURN(
        host, Required(environment, "SLURM_LAUNCH_NODE_IPADDR", "SLURM_PROCID without SLURM_JOB_NODELIST"));
  }
  ATOLL_ASSIGN_OR_RETURN(const int32_t port, LeaderPort(environment));
  identity.leader = fmt::format("{}:{}", host, port);
  return identity;
}

absl::StatusOr<std::optional<RankIdentity>> FromEnvironment(const RankFlags& flags, const Environment& environment) {
  absl::StatusOr<RankIdentity> identity;
  if (Find(environment, "RANK") != nullptr) {
    identity = FromTorchrun(environment);
  } else if (Find(environment, "JOBSET_NAME") != nullptr) {
    identity = FromJobSet(environment, flags);
  } else if (Find(environment, "SLURM_PROCID") != nullptr) {
    identity = FromSlurm(environment);
  } else {
    return std::nullopt;
  }
  if (!identity.ok()) return identity.status();
  return *std::move(identity);
}

template <typename T>
absl::Status Agree(std::string_view flag, const std::optional<T>& given, const T& found, std::string_view source) {
  if (!given.has_value() || *given == found) return absl::OkStatus();
  return Unclear(fmt::format("{} {} contradicts {}, which says {}; give --rank, --ranks and --leader all, or none",
                             flag, *given, source, found));
}

absl::Status CheckLeader(const RankIdentity& identity) {
  const size_t colon = identity.leader.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return Unclear(fmt::format("--leader: expected HOST:PORT, found '{}'", identity.leader));
  }
  const int32_t least = identity.rank == 0 ? 0 : 1;
  return ParseNumber("--leader: port", std::string_view(identity.leader).substr(colon + 1), least, 65535).status();
}

absl::StatusOr<RankIdentity> Checked(RankIdentity identity) {
  if (identity.ranks < 1 || identity.ranks > kMostRanks) {
    return Unclear(
        fmt::format("ranks ({}): expected from 1 to {}, found {}", identity.source, kMostRanks, identity.ranks));
  }
  if (identity.rank < 0 || identity.rank >= identity.ranks) {
    return Unclear(fmt::format("rank ({}): expected from 0 to {} with {} ranks, found {}", identity.source,
                               identity.ranks - 1, identity.ranks, identity.rank));
  }
  ATOLL_RETURN_IF_ERROR(CheckLeader(identity));
  return identity;
}

}  // namespace

absl::StatusOr<std::string> FirstSlurmHost(std::string_view node_list) {
  const size_t end = node_list.find_first_of("[,");
  std::string host(node_list.substr(0, end));
  if (end != std::string_view::npos && node_list[end] == '[') {
    const std::string_view range = node_list.substr(end + 1);
    const std::string_view first = range.substr(0, range.find_first_of("-,]"));
    if (first.empty() || range.find(']') == std::string_view::npos) host.clear();
    // The suffix after the bracket belongs to every name of the range: "gpu[1-2]-ib" is gpu1-ib, gpu2-ib.
    const std::string_view rest = host.empty() ? "" : range.substr(range.find(']') + 1);
    if (!host.empty()) host += fmt::format("{}{}", first, rest.substr(0, rest.find(',')));
  }
  if (host.empty()) {
    return Unclear(fmt::format("SLURM_JOB_NODELIST: expected names such as node[01-04],other, found '{}'", node_list));
  }
  return host;
}

absl::StatusOr<RankIdentity> DiscoverRank(const RankFlags& flags, const Environment& environment) {
  if (flags.rank.has_value() && flags.ranks.has_value() && !flags.leader.empty()) {
    return Checked({.rank = *flags.rank, .ranks = *flags.ranks, .leader = flags.leader, .source = "flags"});
  }
  ATOLL_ASSIGN_OR_RETURN(std::optional<RankIdentity> found, FromEnvironment(flags, environment));
  if (found.has_value()) {
    const std::optional<std::string> leader =
        flags.leader.empty() ? std::nullopt : std::optional<std::string>(flags.leader);
    ATOLL_RETURN_IF_ERROR(Agree("--rank", flags.rank, found->rank, found->source));
    ATOLL_RETURN_IF_ERROR(Agree("--ranks", flags.ranks, found->ranks, found->source));
    ATOLL_RETURN_IF_ERROR(Agree("--leader", leader, found->leader, found->source));
    return Checked(*std::move(found));
  }
  const int32_t ranks = flags.ranks.value_or(1);
  if (ranks > 1) {
    return Unclear(
        fmt::format("--ranks {}: --rank and --leader are expected too, or the variables of torchrun, JobSet "
                    "or Slurm; found neither",
                    ranks));
  }
  return Checked({.rank = flags.rank.value_or(0),
                  .ranks = ranks,
                  .leader = flags.leader.empty() ? "127.0.0.1:0" : flags.leader,
                  .source = "alone"});
}

}  // namespace atl::worker
