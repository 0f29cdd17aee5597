#include "common/planner/fit_stages.h"

#include <algorithm>

#include "common/schedule/generators.h"

namespace atl::planner {

int32_t FitStages(const spec::PipelineSpec& pipeline, int32_t ranks, int32_t layers) {
  if (pipeline.stages <= 0) return 0;
  // Replicas share the ranks.
  const int32_t ranks_of_one = std::max(ranks / std::max(pipeline.replicas, 1), 1);
  const auto generator = schedule::FindGenerator(pipeline.schedule);
  int32_t per_rank = 1;
  if (generator.ok()) {
    per_rank = generator->stages_per_rank;
  } else if (pipeline.schedule == "auto" && std::min(pipeline.stages, layers) > ranks_of_one) {
    per_rank = 2;
  }
  const int64_t most = std::min<int64_t>({pipeline.stages, int64_t{ranks_of_one} * per_rank, layers});
  return static_cast<int32_t>(std::max<int64_t>(most / per_rank, 1) * per_rank);
}

}  // namespace atl::planner
