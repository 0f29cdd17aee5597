// The shape of a job's images, where a command needs it before anything runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "common/spec/frozen.h"
#include "common/spec/spec.h"

namespace atl::client {

// [channels, height, width] of the images: as `flag` gives it ("1x8x8"; INVALID_ARGUMENT, reason USAGE, for anything
// else), or, where that is empty, as the dataset has it.
absl::StatusOr<spec::SampleShape> FindImageShape(const Session& session, const std::string& flag,
                                                 const std::string& dataset_name);

}  // namespace atl::client
