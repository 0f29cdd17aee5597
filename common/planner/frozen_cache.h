// Decides whether the outputs of frozen components are computed in every iteration, or once and then read. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/spec.h"

namespace atl::planner {

// The inputs of a task's frozen components over its whole run.
struct FrozenInputs {
  // By component: the number of its different inputs, and so of its different outputs. An image counts twice if it may
  // be flipped; for labels these are the classes and the null class. Empty: unknown.
  std::vector<int64_t> rows;
  int64_t iterations = 0;          // of the task
  double storage_limit_bytes = 0;  // limit of kept outputs; 0: none
};

// Returns the inputs of a task that trains on `samples` images of `classes` classes.
FrozenInputs FrozenInputsOf(const std::vector<spec::FrozenSpec>& components, const spec::TrainingSpec& training,
                            int64_t samples, int32_t classes);

struct FrozenCacheFacts {
  int64_t iterations = 0;
  double bytes = 0;             // of all outputs that stages read
  double pass_seconds = 0;      // to compute every output once, on all ranks
  double computed_seconds = 0;  // of an iteration that computes its outputs, as planned
  double cached_seconds = 0;    // of an iteration that reads them
  double storage_limit_bytes = 0;
};

struct FrozenCacheDecision {
  bool cache = false;
  std::string reason;
};

// Decides for frozen_cache: auto.
FrozenCacheDecision DecideFrozenCache(const FrozenCacheFacts& facts);

}  // namespace atl::planner
