// Measures a profile without an island: processes of one machine that meet in a folder, started by `atoll profile`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/attempt/training_attempt.h"

namespace atl::worker {

struct LocalProfileOptions {
  // Holds job.yaml, and frozen-<i> with the bytes of its i-th spec::FrozenFiles; each rank leaves
  // address-<rank> and in the end profile-<rank>.json.
  std::string folder;
  int32_t rank = 0;
  int32_t ranks = 1;
  std::string device = "cpu";
  std::string network = "expert";  // or "router"
  std::string image;               // "CxHxW", of the images
  int32_t classes = 0;
  std::vector<int32_t> micro_batch_sizes;
};

// Measures as one of the ranks. Blocks until all ranks are present; DEADLINE_EXCEEDED if they are not in time.
absl::Status RunLocalProfile(const LocalProfileOptions& options, const AttemptParts& parts);

}  // namespace atl::worker
