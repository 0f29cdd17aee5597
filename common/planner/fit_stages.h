// Fits a job's stages to the island that runs it, which may differ from the one that the job was written for. Pure.
#pragma once

#include <cstdint>

#include "common/spec/spec.h"

namespace atl::planner {

// Returns pipeline.stages, or fewer if the ranks of one replica and the model's layers hold fewer: always a multiple of
// the schedule's stages per rank. With "auto" up to two per rank, because some schedules use two. 0 stays 0.
int32_t FitStages(const spec::PipelineSpec& pipeline, int32_t ranks, int32_t layers);

}  // namespace atl::planner
