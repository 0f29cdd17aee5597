// Which samples of a run's shuffled order a step reads: the only place that knows of batches that are left out. Pure.
//
// A cursor is a place in that order, counted in samples: all before it is read or left out. Batches begin at multiples
// of their size.
#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/task.h"

namespace atl::spec {

// Where the batch begins that a run which stands at `cursor` reads after `ahead` others (0: the next one). Windows may
// overlap and come in any order.
int64_t BatchStart(int64_t cursor, int64_t ahead, int64_t batch_size, const std::vector<SkippedWindow>& skipped);

// The step (1 for the first) in which a run that skips nothing reads what one with `skipped` reads in `step`.
int64_t UnskippedStep(int64_t step, const std::vector<SkippedWindow>& skipped);

}  // namespace atl::spec
