// What `atoll plan` and `atoll profile` refuse before anything is planned or measured.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/planner/profile.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"

namespace atl::client {

// What a submit refuses of a job for images of this shape: shapes that frozen components do not make, patches that do
// not divide what is learnt. What else a dataset would tell, samples and classes, is taken to suit the job.
absl::Status CheckImages(const spec::JobSpec& spec, const spec::SampleShape& image);

// INVALID_ARGUMENT (PROFILE_MISMATCH, with `file`) for a profile of other layers than those of the job's `network`,
// whose model is `model`: their number, or the bytes of a block's parameters.
absl::Status CheckProfileIsOf(const planner::Profile& profile, const spec::ModelSpec& model, const std::string& network,
                              const std::string& file);

}  // namespace atl::client
