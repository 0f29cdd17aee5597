// The checks by which `atoll plan` and `atoll profile` reject a job before they plan or measure it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/planner/profile.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"

namespace atl::client {

// Returns [channels, height, width] of the job's images: from `flag` ("1x8x8"; INVALID_ARGUMENT, reason USAGE, for
// anything else) or, if it is empty, from the dataset. Errors that name `file` are those that a submit returns for such
// images: shapes that the frozen components do not produce, and patches that do not divide the learned size.
absl::StatusOr<spec::SampleShape> FindImages(const Session& session, const std::string& flag, const spec::JobSpec& spec,
                                             const std::string& file);

// Returns INVALID_ARGUMENT (PROFILE_MISMATCH, with `file`) if the profile's layers are not those of `model`, the model
// of the job's `network`: their number, or the bytes of a block's parameters, differ.
absl::Status CheckProfileIsOf(const planner::Profile& profile, const spec::ModelSpec& model, const std::string& network,
                              const std::string& file);

}  // namespace atl::client
