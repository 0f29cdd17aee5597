// Whether the outputs of a frozen component should be computed in every iteration or once, and kept. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace atl::planner {

enum class FrozenCache : uint8_t { kAuto, kNever, kAlways };

struct FrozenCacheFacts {
  bool cache_exists = false;         // that this build can run from a cache
  bool reads_sample_only = true;     // image and label, not noise, time or what training changes
  bool augments = false;             // images differ from epoch to epoch
  double epochs = 1;                 // that the job passes over its samples
  int64_t samples = 0;               // of the job; 0: unknown
  double bytes_per_sample = 0;       // of the component's outputs
  double compute_seconds = 0;        // per sample, on one rank
  double exposed_fraction = 1;       // of that compute that lengthens the iteration: 0 where bubbles hold it all
  double read_bytes_per_second = 0;  // from storage, per rank; 0: unknown, taken as free
  double storage_limit_bytes = 0;    // 0: none
};

struct FrozenCacheDecision {
  bool cache = false;
  std::string reason;
};

// kAlways is an INVALID_ARGUMENT (FROZEN_CACHE, with the field frozen_cache) where a cache would be wrong or does not
// exist; where it merely costs more, it is obeyed. kAuto caches only what repeats, fits and saves time.
absl::StatusOr<FrozenCacheDecision> DecideFrozenCache(FrozenCache wanted, const FrozenCacheFacts& facts);

}  // namespace atl::planner
