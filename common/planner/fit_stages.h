// A job is written for the island that it hopes for; what becomes of its stages on the one that it gets. Pure.
#pragma once

#include <cstdint>

#include "common/spec/spec.h"

namespace atl::planner {

// pipeline.stages, or as many as the ranks of one replica and the model's layers hold where that is fewer: a multiple
// of what the schedule puts on every rank. With "auto" up to two per rank, where some schedules put two. 0 stays 0.
int32_t FitStages(const spec::PipelineSpec& pipeline, int32_t ranks, int32_t layers);

}  // namespace atl::planner
