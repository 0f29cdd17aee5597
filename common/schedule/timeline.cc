#include "common/schedule/timeline.h"

#include <algorithm>
#include <utility>

#include "common/schedule/dependency_order.h"
#include "common/schedule/memory.h"

namespace atl::schedule {
namespace {

// The later of two points at one time counts.
void AddPoint(std::vector<MemoryPoint>* points, double seconds, double bytes) {
  if (!points->empty() && points->back().seconds == seconds) {
    points->back().bytes = bytes;
  } else if (points->empty() || points->back().bytes != bytes) {
    points->push_back({seconds, bytes});
  }
}

}  // namespace

std::vector<Transfer> Transfers(const Schedule& schedule, const SimulationCosts& costs, const Simulation& simulation) {
  const ActionIndex index(schedule);
  std::vector<Transfer> transfers;
  const auto add = [&](ActionPlace from, int32_t to_rank, double seconds) {
    if (from.rank == to_rank) return;
    const SimulatedAction& sender = simulation.ranks[from.rank][from.position];
    transfers.push_back({sender.action, from.rank, to_rank, sender.end_seconds, sender.end_seconds + seconds});
  };
  for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (action.kind == ActionKind::kFrozen) {
        const FrozenCost& cost = costs.frozen[action.micro_batch];
        for (const int32_t piece : cost.reads) add(index.Frozen(piece), rank, cost.transfer_seconds);
      } else if (const auto producer = index.Producer(action)) {
        add(*producer, rank, HopSeconds(action, costs));
      }
    }
  }
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const Transfer& a, const Transfer& b) { return a.start_seconds < b.start_seconds; });
  return transfers;
}

std::vector<std::vector<MemoryPoint>> MemoryOverTime(const SimulationCosts& costs, const Simulation& simulation) {
  std::vector<std::vector<MemoryPoint>> ranks(simulation.ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    double held = costs.fixed_bytes.empty() ? 0 : costs.fixed_bytes[rank];
    AddPoint(&ranks[rank], 0, held);
    for (const SimulatedAction& run : simulation.ranks[rank]) {
      const MemoryChange change = MemoryChangeOf(run.action, costs);
      held += change.kept_bytes;
      AddPoint(&ranks[rank], run.start_seconds, held + change.transient_bytes);
      held -= change.freed_bytes;
      AddPoint(&ranks[rank], run.end_seconds, held);
    }
  }
  return ranks;
}

}  // namespace atl::schedule
