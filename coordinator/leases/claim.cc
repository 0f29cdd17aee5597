#include "coordinator/leases/claim.h"

#include <algorithm>
#include <compare>
#include <string_view>
#include <utility>

#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"

namespace atl::leases {
namespace {

// Whether the island can run the task and is to. Says why not in `why`, unless that is null: making the text costs more
// than all else of a claim that nothing fits.
bool Fits(const Island& island, const Candidate& candidate, std::string* why) {
  const auto no = [why](std::string_view text, const auto&... args) {
    if (why != nullptr) *why = fmt::format(fmt::runtime(text), args...);
    return false;
  };
  const Capabilities& has = island.capabilities;
  const spec::Requirements& needs = candidate.requirements;
  const std::string& task = candidate.task_id;
  if (!candidate.wanted_island.empty() && candidate.wanted_island != island.island_id) {
    return no("{} is kept for island {}", task, candidate.wanted_island);
  }
  if (!candidate.avoided_island.empty() && candidate.avoided_island == island.island_id) {
    return no("{} was moved away from this island", task);
  }
  if (candidate.failed_islands.contains(island.island_id)) {
    return no("{} failed on this island, and another can run it", task);
  }
  if (!Overlap(has.format, candidate.format)) {
    return no("{} needs a format version in [{}, {}], the island has [{}, {}]", task, candidate.format.min,
              candidate.format.max, has.format.min, has.format.max);
  }
  for (const auto& [key, value] : needs.labels) {
    const auto it = has.labels.find(key);
    if (it == has.labels.end()) return no("{} needs label {}={}, the island has none", task, key, value);
    if (it->second != value) return no("{} needs label {}={}, the island has {}={}", task, key, value, key, it->second);
  }
  if (!jobs::IsTraining(candidate.kind)) return true;
  if (has.ranks < needs.min_ranks) return no("{} needs {} ranks, the island has {}", task, needs.min_ranks, has.ranks);
  if (!needs.device_kind.empty() && has.device_kind != needs.device_kind) {
    return no("{} needs device '{}', the island has '{}'", task, needs.device_kind, has.device_kind);
  }
  if (has.memory_bytes_per_rank < needs.min_memory_bytes) {
    return no("{} needs {} bytes of memory per rank, the island has {}", task, needs.min_memory_bytes,
              has.memory_bytes_per_rank);
  }
  return true;
}

bool HoldsInput(const Candidate& candidate, const std::set<std::string>& cached_uris) {
  return !cached_uris.empty() && std::any_of(candidate.input_uris.begin(), candidate.input_uris.end(),
                                             [&](const std::string& uri) { return cached_uris.contains(uri); });
}

// Higher is granted first.
struct Rank {
  bool moved_here = false;
  int32_t priority = 0;
  bool cached = false;
  int64_t older = 0;  // minus its job's age
  auto operator<=>(const Rank&) const = default;
};

}  // namespace

std::string UnmetRequirement(const Island& island, const Candidate& candidate) {
  std::string why;
  Fits(island, candidate, &why);
  return why;
}

bool CandidateIndex::Put(int64_t age, std::vector<Candidate> candidates) {
  std::vector<Candidate> before;
  if (const auto known = place_of_.find(age); known != place_of_.end()) {
    before = std::move(jobs_.extract(known->second).mapped());
    place_of_.erase(known);
  }
  if (candidates.empty()) return false;
  // Both are in graph order: one pass finds what is new, however many wait.
  auto at = before.begin();
  const bool any_new = std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
    at = std::find(at, before.end(), candidate);
    return at == before.end();
  });
  const bool none_moved = std::all_of(candidates.begin(), candidates.end(),
                                      [](const Candidate& candidate) { return candidate.wanted_island.empty(); });
  const Place place{none_moved, -int64_t{candidates.front().priority}, age};
  place_of_[age] = place;
  jobs_[place] = std::move(candidates);
  return any_new;
}

ClaimDecision CandidateIndex::Decide(const Island& island, const std::set<std::string>& cached_uris,
                                     const std::set<int64_t>* ages) const {
  ClaimDecision decision;
  size_t unmet_count = 0;
  Rank best;
  for (const auto& [place, candidates] : jobs_) {
    // The highest rank in a job without a moved task, and in all jobs that follow.
    const Rank most{!place.none_moved, static_cast<int32_t>(-place.urgency), !cached_uris.empty(), -place.age};
    if (decision.candidate && place.none_moved && most <= best) break;
    if (ages != nullptr && !ages->contains(place.age)) continue;
    for (const Candidate& candidate : candidates) {
      const Rank rank{!candidate.wanted_island.empty(), candidate.priority, HoldsInput(candidate, cached_uris),
                      -place.age};
      if (decision.candidate && rank <= best) continue;
      std::string why;
      if (!Fits(island, candidate, unmet_count < kMaxUnmet ? &why : nullptr)) {
        if (++unmet_count <= kMaxUnmet) decision.unmet.push_back(std::move(why));
        continue;
      }
      decision.candidate = &candidate;
      best = rank;
    }
  }
  if (!decision.candidate) {
    if (unmet_count > kMaxUnmet) decision.unmet.push_back(fmt::format("and {} more", unmet_count - kMaxUnmet));
    decision.reason = unmet_count == 0
                          ? std::string("no task waits")
                          : fmt::format("none of {} waiting tasks fits island {}", unmet_count, island.island_id);
    return decision;
  }
  const Candidate& chosen = *decision.candidate;
  decision.unmet.clear();
  decision.reason = fmt::format("{} has the highest priority ({}) of what fits{}{}", chosen.task_id, chosen.priority,
                                best.cached ? ", and the island holds its input" : "",
                                chosen.expired_island.empty()
                                    ? std::string()
                                    : fmt::format("; the lease of island {} ran out", chosen.expired_island));
  return decision;
}

}  // namespace atl::leases
