// Which task an island gets. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/spec/spec.h"
#include "common/spec/task.h"
#include "coordinator/leases/membership.h"

namespace atl::leases {

// A task that may be granted: READY, or leased to an island that let its lease run out.
struct Candidate {
  std::string task_id;
  spec::TaskKind kind = spec::TaskKind::kFeaturize;
  int32_t priority = 0;
  spec::Requirements requirements;
  // Formats that the task's files need.
  VersionRange format{1, 1};
  // URIs that the task reads.
  std::vector<std::string> input_uris;
  // Island whose lease ran out; empty for a READY task.
  std::string expired_island;
  // Moved by an operator: only the one is granted it, or everybody but the other. Empty: neither.
  std::string wanted_island;
  std::string avoided_island;
};

struct ClaimDecision {
  // Position in `candidates` of what is granted.
  std::optional<size_t> candidate;
  // Why each waiting task does not fit, at most kMaxUnmet lines, then a count; empty when something was granted or
  // nothing waits.
  std::vector<std::string> unmet;
  std::string reason;
};

inline constexpr size_t kMaxUnmet = 16;

// Why the island cannot run the task, or is not to; empty when it can. Ranks, device and memory are asked of tasks that
// train on every rank; labels and format of all.
std::string UnmetRequirement(const Island& island, const Candidate& candidate);

// Among the candidates that fit: those that were moved to this island first, then highest priority, then those that
// read a URI the island holds, then the first in the order given (oldest job, graph order).
ClaimDecision DecideClaim(const Island& island, const std::vector<Candidate>& candidates,
                          const std::set<std::string>& cached_uris);

}  // namespace atl::leases
