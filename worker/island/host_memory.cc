#include "worker/island/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>

namespace atl::worker {
namespace {

// A number of at least 1, and nothing behind it but white space; otherwise 0.
int64_t ParseCount(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  return error == std::errc() && end == text.data() + text.size() && count > 0 ? count : 0;
}

}  // namespace

bool IsLocalAddress(std::string_view host_and_port) {
  const std::string_view host = host_and_port.substr(0, host_and_port.rfind(':'));
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

int32_t RanksPerHost(const RankIdentity& identity, const Environment& environment) {
  if (IsLocalAddress(identity.leader)) return identity.ranks;
  for (const char* name : {"LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"}) {
    const auto found = environment.find(name);
    const int64_t count = found == environment.end() ? 0 : ParseCount(found->second);
    if (count > 0) return static_cast<int32_t>(std::min<int64_t>(count, identity.ranks));
  }
  return 1;
}

int64_t MemoryShare(int64_t machine_bytes, std::string_view group_limit, int32_t ranks) {
  const int64_t limit = ParseCount(group_limit);
  return (limit > 0 ? std::min(machine_bytes, limit) : machine_bytes) / std::max(ranks, 1);
}

int64_t HostMemoryPerRank(int32_t ranks) {
  std::string limit;
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    if (std::ifstream file(path); std::getline(file, limit)) break;
  }
  return MemoryShare(int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE), limit, ranks);
}

}  // namespace atl::worker
