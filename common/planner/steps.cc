#include "common/planner/steps.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/planner/simulation_costs.h"
#include "common/schedule/self_conditioning.h"

namespace atl::planner {

double ExpectedSeconds(const Prediction& predicted, double self_conditioning_rate) {
  return (1 - self_conditioning_rate) * predicted.iteration_seconds +
         self_conditioning_rate * predicted.self_conditioned_seconds;
}

absl::StatusOr<Steps> SimulateSteps(const Profile& profile, double self_conditioning_rate, Plan* plan) {
  Steps steps;
  plan->self_conditioned = {};
  steps.costs = CostsOf(*plan, profile);
  if (self_conditioning_rate > 0) {
    plan->self_conditioned = schedule::AddSelfConditioning(plan->schedule, steps.costs);
    steps.costs = CostsOf(*plan, profile);  // with the lanes of C's
    ATOLL_ASSIGN_OR_RETURN(steps.self_conditioned, schedule::SimulateValid(plan->self_conditioned, steps.costs));
  }
  ATOLL_ASSIGN_OR_RETURN(steps.plain, schedule::SimulateValid(plan->schedule, steps.costs));
  return steps;
}

double IterationSeconds(const Plan& plan, const Profile& profile, const schedule::Simulation& simulation) {
  const std::vector<std::vector<int32_t>> readers = FrozenReaders(plan);
  double end = simulation.makespan_seconds;
  for (const auto& rank : simulation.ranks) {
    for (const schedule::SimulatedAction& run : rank) {
      if (run.action.kind != schedule::ActionKind::kFrozen) continue;
      const FrozenPiece& piece = plan.frozen[run.action.micro_batch];
      const std::vector<FrozenLayerProfile>& layers = profile.frozen[piece.component].layers;
      if (piece.end_layer < static_cast<int32_t>(layers.size())) continue;
      for (const int32_t reader : readers[piece.component]) {
        if (reader == piece.rank) continue;
        end = std::max(end, run.end_seconds + TransferSeconds(profile, layers.back().output_bytes * piece.samples));
      }
    }
  }
  return end;
}

std::vector<double> PeakBytesByRank(const Steps& steps) {
  std::vector<double> peaks = steps.plain.peak_bytes;
  for (size_t rank = 0; rank < steps.self_conditioned.peak_bytes.size(); ++rank) {
    peaks[rank] = std::max(peaks[rank], steps.self_conditioned.peak_bytes[rank]);
  }
  return peaks;
}

}  // namespace atl::planner
