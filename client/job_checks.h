// What `atoll plan` and `atoll profile` refuse before anything is planned or measured.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/planner/profile.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"

namespace atl::client {

// [channels, height, width] of the job's images: as `flag` gives it ("1x8x8"; INVALID_ARGUMENT, reason USAGE, for
// anything else), or, where that is empty, as the dataset has it. Errors that name `file` are those of a submit for
// such images: shapes that frozen components do not make, patches that do not divide what is learnt.
absl::StatusOr<spec::SampleShape> FindImages(const Session& session, const std::string& flag, const spec::JobSpec& spec,
                                             const std::string& file);

// INVALID_ARGUMENT (PROFILE_MISMATCH, with `file`) for a profile of other layers than those of the job's `network`,
// whose model is `model`: their number, or the bytes of a block's parameters.
absl::Status CheckProfileIsOf(const planner::Profile& profile, const spec::ModelSpec& model, const std::string& network,
                              const std::string& file);

}  // namespace atl::client
