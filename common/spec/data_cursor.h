// Finds the samples of a run's shuffled order that a step reads; only this code knows skipped batches. Pure.
//
// A cursor is a position in that order, counted in samples: all samples before it are read or skipped. Batches begin at
// multiples of their size.
#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/task.h"

namespace atl::spec {

// Returns the start of a batch that a run at `cursor` reads: the batch after `ahead` others (0: the next one). Windows
// may overlap and come in any order.
int64_t BatchStart(int64_t cursor, int64_t ahead, int64_t batch_size, const std::vector<SkippedWindow>& skipped);

// Returns the step (1 for the first) in which a run without skips reads the batch that a run with `skipped` reads in
// `step`.
int64_t UnskippedStep(int64_t step, const std::vector<SkippedWindow>& skipped);

}  // namespace atl::spec
