// Measured profiles: chooses sizes to measure, merges ranks' profiles, and adjusts one to the machine's current speed.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/profile.h"

namespace atl::planner {

// Returns the micro-batch sizes that plans for `ranks` ranks may use, ascending: for each number of replicas, and if
// the number of micro-batches is free (0), for halves, quarters and so on of the batch.
std::vector<int32_t> SizesToProfile(int32_t batch_size, int32_t micro_batches, int32_t ranks);

// Merges what ranks measured at the same time: mean seconds, the largest bytes, the slowest transfer, and each rank's
// seconds over the mean as its slowdown. INVALID_ARGUMENT (PROFILES_DIFFER) if they did not measure the same things.
absl::StatusOr<Profile> MergeProfiles(const std::vector<Profile>& ranks);

// Returns the seconds of one micro-batch through all trainable layers, forward and backward; 0 for a size that was not
// measured.
double MicroBatchSeconds(const Profile& profile, int32_t micro_batch_size);

// Scales an earlier profile to the machine's current speed. `now` is a short measurement of the same model: it scales
// all seconds of computation by the time of one micro-batch of the smallest size, and sets the ranks' slowdowns.
// Returns the factor.
double AdjustSpeed(const Profile& now, Profile* profile);

}  // namespace atl::planner
