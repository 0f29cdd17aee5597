// Decides which task an island is granted. Pure.
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

// A task that may be granted: READY, or leased to an island whose lease expired.
struct Candidate {
  std::string task_id;
  spec::TaskKind kind = spec::TaskKind::kFeaturize;
  int32_t priority = 0;
  spec::Requirements requirements;
  // Formats that the task's files need.
  VersionRange format{1, 1};
  // URIs that the task reads.
  std::vector<std::string> input_uris;
  // The island whose lease expired; empty for a READY task.
  std::string expired_island;
  // Set by an operator's move: only `wanted_island`, or every island except `avoided_island`, is granted the task. Both
  // empty: not moved.
  std::string wanted_island;
  std::string avoided_island;
  // The islands on which it failed recently, if another island can run it: they are not granted it.
  std::set<std::string> failed_islands;
  bool operator==(const Candidate&) const = default;
};

struct ClaimDecision {
  // The granted task; null when none fits. Valid until the index changes.
  const Candidate* candidate = nullptr;
  // Why each waiting task does not fit: at most kMaxUnmet lines, then a count. Empty if a task was granted or none
  // waits.
  std::vector<std::string> unmet;
  std::string reason;
};

inline constexpr size_t kMaxUnmet = 16;

// Returns why the island cannot or must not run the task; empty when it can. Ranks, device and memory matter for tasks
// that train on every rank; labels and format matter for all.
std::string UnmetRequirement(const Island& island, const Candidate& candidate);

// The candidates of all jobs, kept in the order in which they are granted, so that neither a change of one job nor a
// claim visits all of them. Not thread-safe.
class CandidateIndex {
 public:
  // Replaces the waiting tasks of one job, which are in graph order and share one priority; empty: the job has none.
  // `age` orders jobs of the same priority, the oldest being the lowest. Returns whether any task is new: only then may
  // a claim that no task fitted before be served.
  bool Put(int64_t age, std::vector<Candidate> candidates);

  // Order among the candidates that fit: tasks that were moved to the island, then the highest priority, then tasks
  // that read a URI that the island holds, then the oldest job's, in graph order. `ages` limits the choice to those
  // jobs.
  ClaimDecision Decide(const Island& island, const std::set<std::string>& cached_uris,
                       const std::set<int64_t>* ages = nullptr) const;

 private:
  // The lowest is tried first.
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
