// Which task an island gets. Pure.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
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
  // It failed on these of late, and some other island can run it: they leave it to others.
  std::set<std::string> failed_islands;
  bool operator==(const Candidate&) const = default;
};

struct ClaimDecision {
  // What is granted; null when nothing fits. Valid until the index changes.
  const Candidate* candidate = nullptr;
  // Why each waiting task does not fit, at most kMaxUnmet lines, then a count; empty when something was granted or
  // nothing waits.
  std::vector<std::string> unmet;
  std::string reason;
};

inline constexpr size_t kMaxUnmet = 16;

// Why the island cannot run the task, or is not to; empty when it can. Ranks, device and memory are asked of tasks that
// train on every rank; labels and format of all.
std::string UnmetRequirement(const Island& island, const Candidate& candidate);

// The candidates of all jobs, kept in the order in which they are granted, so that neither a change of one job nor a
// claim looks at all of them. Not thread-safe.
class CandidateIndex {
 public:
  // What waits of one job, in graph order and of one priority, in place of what was known of it; empty: nothing.
  // `age` orders jobs of the same priority, the oldest being the lowest. Returns whether any of them is new: only then
  // may a claim that nothing fitted before be served.
  bool Put(int64_t age, std::vector<Candidate> candidates);

  // Among the candidates that fit: those that were moved to the island, then highest priority, then those that read a
  // URI the island holds, then the oldest job's, in graph order. `ages` limits the choice to those jobs.
  ClaimDecision Decide(const Island& island, const std::set<std::string>& cached_uris,
                       const std::set<int64_t>* ages = nullptr) const;

 private:
  // The lowest is looked at first.
  struct Place {
    bool none_moved = true;  // no task of the job is wanted by one island
    int64_t urgency = 0;     // minus its priority
    int64_t age = 0;
    auto operator<=>(const Place&) const = default;
  };

  std::map<Place, std::vector<Candidate>> jobs_;
  std::map<int64_t, Place> place_of_;  // by age
};

}  // namespace atl::leases
