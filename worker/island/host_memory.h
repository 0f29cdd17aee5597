// What memory a rank on a processor may hold: its share of the host's, or of the container's limit.
#pragma once

#include <cstdint>
#include <string_view>

#include "worker/island/rank_discovery.h"

namespace atl::worker {

// How many ranks of the island share a host, as far as flags and launcher tell: all of them where the leader is local;
// what LOCAL_WORLD_SIZE or SLURM_NTASKS_PER_NODE says; else one. Pure.
int32_t RanksPerHost(const RankIdentity& identity, const Environment& environment);

// Whether ranks reach their leader without leaving the host. Pure.
bool IsLocalAddress(std::string_view host_and_port);

// The lesser of the machine's memory and a control group's limit, as the kernel prints it ("max": none), over the ranks
// that share it. Pure.
int64_t MemoryShare(int64_t machine_bytes, std::string_view group_limit, int32_t ranks);

// Of this host, now.
int64_t HostMemoryPerRank(int32_t ranks);

}  // namespace atl::worker
