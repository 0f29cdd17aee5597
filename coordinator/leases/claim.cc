#include "coordinator/leases/claim.h"

#include <algorithm>
#include <compare>

#include "coordinator/jobs/task_graph.h"
#include "fmt/format.h"

namespace atl::leases {
namespace {

std::string UnmetByRanks(const Capabilities& has, const spec::Requirements& needs) {
  if (has.ranks < needs.min_ranks) return fmt::format("needs {} ranks, the island has {}", needs.min_ranks, has.ranks);
  if (!needs.device_kind.empty() && has.device_kind != needs.device_kind) {
    return fmt::format("needs device '{}', the island has '{}'", needs.device_kind, has.device_kind);
  }
  if (has.memory_bytes_per_rank < needs.min_memory_bytes) {
    return fmt::format("needs {} bytes of memory per rank, the island has {}", needs.min_memory_bytes,
                       has.memory_bytes_per_rank);
  }
  return "";
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
  auto operator<=>(const Rank&) const = default;
};

}  // namespace

std::string UnmetRequirement(const Island& island, const Candidate& candidate) {
  if (!candidate.wanted_island.empty() && candidate.wanted_island != island.island_id) {
    return fmt::format("{} is kept for island {}", candidate.task_id, candidate.wanted_island);
  }
  if (!candidate.avoided_island.empty() && candidate.avoided_island == island.island_id) {
    return fmt::format("{} was moved away from this island", candidate.task_id);
  }
  const Capabilities& has = island.capabilities;
  const spec::Requirements& needs = candidate.requirements;
  if (!Overlap(has.format, candidate.format)) {
    return fmt::format("{} needs a format version in [{}, {}], the island has [{}, {}]", candidate.task_id,
                       candidate.format.min, candidate.format.max, has.format.min, has.format.max);
  }
  for (const auto& [key, value] : needs.labels) {
    const auto it = has.labels.find(key);
    if (it == has.labels.end())
      return fmt::format("{} needs label {}={}, the island has none", candidate.task_id, key, value);
    if (it->second != value) {
      return fmt::format("{} needs label {}={}, the island has {}={}", candidate.task_id, key, value, key, it->second);
    }
  }
  if (!jobs::IsTraining(candidate.kind)) return "";
  const std::string unmet = UnmetByRanks(has, needs);
  return unmet.empty() ? unmet : fmt::format("{} {}", candidate.task_id, unmet);
}

ClaimDecision DecideClaim(const Island& island, const std::vector<Candidate>& candidates,
                          const std::set<std::string>& cached_uris) {
  ClaimDecision decision;
  size_t unmet_count = 0;
  Rank best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (std::string unmet = UnmetRequirement(island, candidates[i]); !unmet.empty()) {
      if (++unmet_count <= kMaxUnmet) decision.unmet.push_back(std::move(unmet));
      continue;
    }
    const Rank rank{!candidates[i].wanted_island.empty(), candidates[i].priority,
                    HoldsInput(candidates[i], cached_uris)};
    if (decision.candidate && rank <= best) continue;
    decision.candidate = i;
    best = rank;
  }
  if (!decision.candidate) {
    if (unmet_count > kMaxUnmet) decision.unmet.push_back(fmt::format("and {} more", unmet_count - kMaxUnmet));
    decision.reason = candidates.empty()
                          ? std::string("no task waits")
                          : fmt::format("none of {} waiting tasks fits island {}", candidates.size(), island.island_id);
    return decision;
  }
  const Candidate& chosen = candidates[*decision.candidate];
  decision.unmet.clear();
  decision.reason = fmt::format("{} has the highest priority ({}) of what fits{}{}", chosen.task_id, chosen.priority,
                                best.cached ? ", and the island holds its input" : "",
                                chosen.expired_island.empty()
                                    ? std::string()
                                    : fmt::format("; the lease of island {} ran out", chosen.expired_island));
  return decision;
}

}  // namespace atl::leases
