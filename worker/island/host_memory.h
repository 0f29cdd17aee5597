// Determines the memory that a rank on a processor may use: its share of the host's, or of the container's limit.
#pragma once

#include <cstdint>
#include <string_view>

#include "worker/island/rank_discovery.h"

namespace atl::worker {

// Returns how many ranks of the island share a host: all of them if the leader is local, else LOCAL_WORLD_SIZE or
// SLURM_NTASKS_PER_NODE if set, else one. Pure.
int32_t RanksPerHost(const RankIdentity& identity, const Environment& environment);

// Returns whether ranks reach their leader without leaving the host. Pure.
bool IsLocalAddress(std::string_view host_and_port);

// Returns the lesser of the machine's memory and a control group's limit (as the kernel prints it; "max": none),
// divided by the ranks that share it. Pure.
int64_t MemoryShare(int64_t machine_bytes, std::string_view group_limit, int32_t ranks);

// Returns the current memory share of a rank on this host.
int64_t HostMemoryPerRank(int32_t ranks);

}  // namespace atl::worker
