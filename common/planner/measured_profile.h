// Profiles that ranks measured: of which sizes, put together, compared, adjusted to the machine as it is now. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/profile.h"

namespace atl::planner {

// The micro-batch sizes that plans for `ranks` ranks may use, ascending: of each number of replicas, and where the
// number of micro-batches is free (0), of halves, quarters and so on of the batch.
std::vector<int32_t> SizesToProfile(int32_t batch_size, int32_t micro_batches, int32_t ranks);

// What ranks measured at once, as one profile: mean seconds, the largest bytes, the slowest transfer, and each rank's
// seconds over the mean as its slowdown. INVALID_ARGUMENT (PROFILES_DIFFER) when they did not measure the same.
absl::StatusOr<Profile> MergeProfiles(const std::vector<Profile>& ranks);

// One micro-batch through all trainable layers, forward and backward; 0 for a size that was not measured.
double MicroBatchSeconds(const Profile& profile, int32_t micro_batch_size);

// Scales an earlier profile to the machine as it is `now`, as a short measurement of the same model found it: all
// seconds of computation by the time of one micro-batch of the smallest size, and the ranks' slowdowns. Returns the
// factor.
double AdjustSpeed(const Profile& now, Profile* profile);

}  // namespace atl::planner
