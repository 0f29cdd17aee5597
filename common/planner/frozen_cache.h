// Whether the outputs of frozen components are computed in every iteration, or once and read from then on. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/spec.h"

namespace atl::planner {

// What the frozen components of a task read over its whole run.
struct FrozenInputs {
  // By component: how many different inputs it has, and so different outputs. An image counts twice where it may be
  // flipped; labels are the classes and none. Empty: unknown.
  std::vector<int64_t> rows;
  int64_t iterations = 0;          // of the task
  double storage_limit_bytes = 0;  // that kept outputs may take; 0: none
};

// Of a task that trains on `samples` images of `classes` classes.
FrozenInputs FrozenInputsOf(const std::vector<spec::FrozenSpec>& components, const spec::TrainingSpec& training,
                            int64_t samples, int32_t classes);

struct FrozenCacheFacts {
  int64_t iterations = 0;
  double bytes = 0;             // of all outputs that stages read
  double pass_seconds = 0;      // to compute each of them once, on all ranks
  double computed_seconds = 0;  // of an iteration that computes its outputs, as it is planned
  double cached_seconds = 0;    // of one that reads them
  double storage_limit_bytes = 0;
};

struct FrozenCacheDecision {
  bool cache = false;
  std::string reason;
};

// For frozen_cache: auto.
FrozenCacheDecision DecideFrozenCache(const FrozenCacheFacts& facts);

}  // namespace atl::planner
