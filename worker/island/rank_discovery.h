// Determines this process's rank within its island: from flags, or else from the variables that launchers set. Pure.
//
// The first available source wins: --rank/--ranks/--leader together; torchrun (RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT); Kubernetes JobSet (JOB_COMPLETION_INDEX, JOBSET_NAME, JOBSET_REPLICATED_JOB, JOBSET_JOB_INDEX,
// JOBSET_RANKS, JOBSET_SUBDOMAIN); Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_NODELIST, SLURM_LAUNCH_NODE_IPADDR).
// Without any source: an island of one rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace atl::worker {

// The leader's rendezvous port if the launcher names none; ATOLL_LEADER_PORT overrides it.
inline constexpr int32_t kDefaultLeaderPort = 7170;

struct RankFlags {
  std::optional<int32_t> rank;
  std::optional<int32_t> ranks;
  std::string leader;  // "host:port"; empty: not given
};

struct RankIdentity {
  int32_t rank = 0;
  int32_t ranks = 1;
  std::string leader;  // "host:port"; port 0 (any free one) only on the leader itself
  std::string source;  // for messages: "flags", "torchrun", "jobset", "slurm", "alone"
  bool operator==(const RankIdentity&) const = default;
};

using Environment = std::map<std::string, std::string>;

// Returns INVALID_ARGUMENT, reason RANK_UNCLEAR, that names the variable or flag, the expected and the found value.
// Causes: a malformed number, a rank not below the number of ranks, an incomplete launcher environment, or a flag that
// contradicts the launcher. If all flags are given, they alone decide; if only some are, they must agree with the
// launcher.
absl::StatusOr<RankIdentity> DiscoverRank(const RankFlags& flags, const Environment& environment);

// Returns the first host of a Slurm node list: "node[003-007,9],other" gives "node003". INVALID_ARGUMENT if there is
// none.
absl::StatusOr<std::string> FirstSlurmHost(std::string_view node_list);

}  // namespace atl::worker
